"""The processes of a node: what they are started with, watched by and ended by. No store."""
