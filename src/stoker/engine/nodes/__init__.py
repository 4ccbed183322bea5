"""The nodes of a run: keys, leases, machines that are kept, restored or left over."""
