"""The kind `tunnel`: a folder of the server's computer, which a node reaches through the connection to its server."""
