"""Access to the server: sockets, tokens, its home, its log."""
