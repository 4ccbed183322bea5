"""Sweeps on the server: submitted in one go, retried, extended, and their results. Never a decision."""
