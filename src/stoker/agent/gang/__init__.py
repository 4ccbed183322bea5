"""The nodes of one attempt find each other: they start together, save together and end together."""
