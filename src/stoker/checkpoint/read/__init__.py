"""From the disk to a training: the folder of checkpoints, its files, and resuming from one."""
