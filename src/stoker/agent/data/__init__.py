"""How a run reads its data on a node: cached, mounted or linked. Independent of what a script does with it."""
