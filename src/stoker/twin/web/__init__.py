"""The twin's HTTPS interface on loopback: thin, with every decision elsewhere."""
