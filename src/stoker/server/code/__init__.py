"""The code of runs, and what it needs: stored once, removed when nobody uses it."""
