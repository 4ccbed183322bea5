"""What runs on a node: standard library only, packed as one zipapp. Knows its orders and the store, no server."""
