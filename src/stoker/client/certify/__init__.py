"""Tests whether a script resumes exactly: runs it undisturbed and with evictions, and compares the results."""
