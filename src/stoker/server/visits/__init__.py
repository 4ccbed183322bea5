"""Commands that people run on nodes."""
