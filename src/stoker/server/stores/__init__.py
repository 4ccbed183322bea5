"""The stores of a workspace: opened, checked, and shared with nodes."""
