"""`stoker data`: datasets, from a folder of yours to a store and back."""
