"""A workspace: its stores, datasets, accounts and where everything lies."""
