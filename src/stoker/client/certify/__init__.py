"""Whether a script resumes exactly: it is run undisturbed and evicted, and the ends compared. Nothing is printed."""
