"""The server's records: its database, and signed copies of every run in the store."""
