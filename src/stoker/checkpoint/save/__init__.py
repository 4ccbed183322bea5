"""From a training to the disk: what is copied while it waits, and what a thread writes meanwhile."""
