"""The packages of the submitting Python that a remote run needs, found by reading files, without running code."""
