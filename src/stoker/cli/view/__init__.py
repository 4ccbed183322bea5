"""How things look in a terminal: texts, tables, curves, live output."""
