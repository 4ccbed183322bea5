"""How programs bring data to a store, version it and get it back. Content never passes through the server."""
