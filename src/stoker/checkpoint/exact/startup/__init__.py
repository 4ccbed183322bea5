"""A folder for the front of PYTHONPATH, with a `sitecustomize` in it and nothing else."""
