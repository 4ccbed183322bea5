"""The machine that an agent is on: its folder, lease, money and end. No cloud is named."""
