"""Words from a server to one node, in a place that others can read or write: signed or sealed. No cipher of our own."""
