"""Notebooks as scripts: their cells run in one process, in order, and their outputs are written down. No kernel."""
