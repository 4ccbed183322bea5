"""Why a script is told to save or to end: notices, wishes, targets. No cloud is named."""
