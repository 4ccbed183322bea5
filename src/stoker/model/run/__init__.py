"""A run: its attempts, what it reports, what it costs."""
