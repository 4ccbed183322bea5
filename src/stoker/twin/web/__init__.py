"""The twin's face: HTTPS on loopback, thin, with every decision elsewhere."""
