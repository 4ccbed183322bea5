"""How things look in a terminal: words, tables, curves, live output."""
