"""`stoker data`: upload, download, list and delete datasets."""
