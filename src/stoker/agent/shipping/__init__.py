"""What a script prints, reports and writes, on its way to the store. No decision about the run."""
