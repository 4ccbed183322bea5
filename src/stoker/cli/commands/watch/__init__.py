"""Commands that look at runs and change nothing."""
