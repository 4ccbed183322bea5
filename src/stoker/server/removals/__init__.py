"""Removing runs, and what else the server does beside its rounds."""
