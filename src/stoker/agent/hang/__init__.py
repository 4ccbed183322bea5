"""Watches whether the ranks make progress, and takes their stacks when they do not. It never ends a script."""
