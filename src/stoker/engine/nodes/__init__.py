"""Which nodes an attempt has: their keys and leases, how many there are, and what becomes of each. Pure."""
