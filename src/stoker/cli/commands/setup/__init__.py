"""Commands that set this computer up: its server, stores, workspaces, the twin."""
