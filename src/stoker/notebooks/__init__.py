"""Runs notebooks as scripts: their cells run in order in one process, and a copy keeps the outputs. No kernel."""
