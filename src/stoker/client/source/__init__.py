"""The source folder of a run: which files belong to it, their hashes, and the secrets that are not uploaded."""
