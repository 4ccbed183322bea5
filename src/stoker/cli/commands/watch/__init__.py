"""Commands that inspect runs and change nothing."""
