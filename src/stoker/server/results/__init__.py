"""The results of runs in the store: checkpoints, outputs, sizes."""
