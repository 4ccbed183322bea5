"""From a job file to a run: what is read, checked, prepared and uploaded."""
