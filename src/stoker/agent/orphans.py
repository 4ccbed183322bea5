"""What is left of a node whose agent was killed: processes without a parent, and files."""

from __future__ import annotations

from stoker.agent.nodefolder import NodeFolder
from stoker.agent.processes import belonging_to, end_all


def end(folder: NodeFolder, key: str) -> int:
    """Ends every process of the node and clears its folder. Harmless when there is nothing left. 1 if some remain."""
    end_all(key)
    folder.clear()
    return 1 if belonging_to(key) else 0
