"""Removing runs, and other background work of the server."""
