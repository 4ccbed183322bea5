"""This computer: its server, its twin, its workspaces, and whether a cloud is ready."""
