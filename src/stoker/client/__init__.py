"""The Python SDK, job files and snapshots. Everything here must also work on Windows."""
