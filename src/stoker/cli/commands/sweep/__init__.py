"""Commands about many runs: sweeps, their results, and other tools that show them."""
