"""The code of runs, and what it needs: stored once, deleted when unused."""
