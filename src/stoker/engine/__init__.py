"""The decisions: pure functions from facts and observations to new facts and actions. No I/O, no clock."""
