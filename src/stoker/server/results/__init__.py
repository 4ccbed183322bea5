"""What runs have left in the store: checkpoints, outputs, sizes."""
