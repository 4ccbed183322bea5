"""Uploads data to a store, versions it and downloads it. Content never passes through the server."""
