"""The Python that a script runs with: found, downloaded or built. The script is not started here."""
