"""Files between a disk and a store: side by side, verified on the way, in bounded memory."""
