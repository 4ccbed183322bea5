"""What the trials of a sweep may do: how many at once, and for how much money. Never I/O."""
