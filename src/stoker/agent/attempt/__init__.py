"""One attempt on one node: its phases in the order in which they happen, each an object of its own. No process here."""
