"""What the server keeps: its database, and signed copies of every run in the store."""
