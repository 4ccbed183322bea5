"""Why a script must save or stop: notices, wishes, targets. No cloud is named."""
