"""The administrator's one-time set-up of a workspace in Azure, and its removal."""
