"""How a run reads its data on a node: cached, mounted or linked. Nothing here knows what a script does with it."""
