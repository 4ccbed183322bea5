"""Datasets of a workspace and what runs read of them."""
