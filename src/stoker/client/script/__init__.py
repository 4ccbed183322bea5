"""Parses training scripts, without running them, to write a first job file."""
