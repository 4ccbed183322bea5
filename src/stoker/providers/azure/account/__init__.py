"""Which Azure account to use: logins, clients, and the resource groups of its nodes."""
