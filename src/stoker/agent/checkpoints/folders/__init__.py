"""Checkpoint folders as a script writes them: watched until files are complete. Nothing is uploaded here."""
