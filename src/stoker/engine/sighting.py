"""What was seen of a run: the input of every decision about it."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.node import NodeSight
from stoker.model.report import Report


@dataclass(frozen=True, slots=True)
class Sighting:
    """`node` and `report` are the newest attempt's. None means: looked, and there is none."""

    node: NodeSight | None = None
    report: Report | None = None
    spare: NodeSight | None = None  # of the node that was asked for ahead
    leftovers: tuple[str, ...] = ()  # keys of earlier attempts whose nodes are still there
    nodes: tuple[NodeSight, ...] = ()  # all of the run's that are there, spares and leftovers too: for the meter
    still: tuple[str, ...] = ()  # those among them that can do nothing any more, and only cost
    silent_s: float = 0.0  # since the report last changed, by the server's own steady clock
    patience_s: float = 120.0  # silence of its provider's nodes beyond this means that they are lost
    wished_s: float = 0.0  # since the server first told this attempt's agent to stop, likewise
    outlives_s: float = 0.0  # the longest that a node stays without word from the server; 0: unknown
    trouble: str = ""  # why the provider could not start the node, in words
    trouble_hint: str = ""  # what to do about it
    trouble_code: str = ""  # of that error, such as `no-capacity`
