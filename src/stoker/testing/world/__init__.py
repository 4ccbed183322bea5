"""A world for the engine to live in: virtual time, drawn from a seed, everything may break. Nothing here decides."""
