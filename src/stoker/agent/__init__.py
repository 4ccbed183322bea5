"""What runs on a node: standard library only, packed as one zipapp. It talks to the store, never to the server."""
