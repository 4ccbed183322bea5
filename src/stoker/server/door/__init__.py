"""How the server is reached: sockets, tokens, its home, its log."""
