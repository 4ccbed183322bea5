"""Nodes: how they are requested, ordered and visited."""
