"""Checkpoints on the node: watched, committed as sets, restored. No knowledge of the attempt around them."""
