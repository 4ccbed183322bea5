"""The cost of runs, and what they may cost."""
