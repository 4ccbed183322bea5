"""The server's API for programs: the client, handles of runs, and the connection below them."""
