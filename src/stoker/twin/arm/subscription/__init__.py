"""What belongs to a subscription: its state, regions, budgets, policies, roles and identities."""
