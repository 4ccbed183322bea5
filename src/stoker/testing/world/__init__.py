"""A simulated world for the engine: virtual time, drawn from a seed, everything may fail. Nothing here decides."""
