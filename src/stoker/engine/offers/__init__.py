"""Which machine a run takes next."""
