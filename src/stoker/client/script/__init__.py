"""Training scripts, parsed and never run: what a first job file can be written from."""
