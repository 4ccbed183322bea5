"""What clients ask about one run: its state, logs, metrics, results, and commands on its node."""
