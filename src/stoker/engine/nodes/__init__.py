"""The nodes of a run: keys, leases, nodes that are kept, restored or left over."""
