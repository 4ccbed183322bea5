"""What happened to runs, for people: sentences, comparisons, receipts, cards of a notebook."""
