"""The processes of a node: how they are started, watched and stopped. No store."""
