"""The submitting Python, for a run elsewhere: what it needs of it, found by reading files and never by running code."""
