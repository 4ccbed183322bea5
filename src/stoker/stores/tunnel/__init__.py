"""The kind `tunnel`: a store that only the server reaches, and a node through the connection to its server."""
