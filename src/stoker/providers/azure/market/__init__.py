"""Which sizes Azure offers and what they cost."""
