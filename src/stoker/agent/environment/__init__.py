"""The Python that a script runs with: found, brought or built. Nothing is started for the script here."""
