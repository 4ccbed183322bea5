"""Reports of runs for people: sentences, comparisons, receipts, cards of a notebook."""
