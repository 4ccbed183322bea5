"""Uploads what a script prints, reports and writes. No decision about the run."""
