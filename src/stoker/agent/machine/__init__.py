"""The machine of an agent: its folder, lease, budget limit and removal. No cloud is named."""
