"""Sweeps for programs: many runs of one job, and their results. No decision is made here."""
