"""The server as programs ask it: the client, handles of runs, and the connection below them."""
