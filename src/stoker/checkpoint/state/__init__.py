"""What the state of a training is made of: blocks of numbers, random states, a place in the data."""
