"""Commands that set up this computer: its server, stores, workspaces, the twin."""
