"""Which Azure to use: logins, clients, and where the nodes of an account are."""
