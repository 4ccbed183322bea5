"""What Python loads in each process of a run before the script: on `PYTHONPATH`, and never imported by us."""
