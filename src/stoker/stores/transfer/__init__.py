"""Files between a disk and a store: concurrently, verified on the way, in bounded memory."""
