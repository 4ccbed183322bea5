"""How programs ask: the Python SDK, job files and snapshots. Nothing here may keep Windows out."""
