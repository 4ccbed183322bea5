"""The datasets of a workspace, and the inputs of runs."""
