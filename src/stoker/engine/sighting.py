"""What was seen of a run: the input of every decision about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.model.node.node import NodeSight
from stoker.model.run.report import Report


@dataclass(frozen=True, slots=True)
class Sighting:
    """`node` and `report` are the newest attempt's. None means: looked, and there is none."""

    node: NodeSight | None = None
    report: Report | None = None
    spare: NodeSight | None = None  # of the node that was asked for ahead
    leftovers: tuple[str, ...] = ()  # keys of earlier attempts whose nodes are still there
    nodes: tuple[NodeSight, ...] = ()  # all of the run's that are there, spares and leftovers too: for the meter
    still: tuple[str, ...] = ()  # those among them that can do nothing any more, and only cost
    refused: str = ""  # why what its node said last is not used, in words
    refused_s: float = 0.0  # since nothing that it says could be used, by the server's own steady clock
    silent_s: float = 0.0  # since the report last changed, by the server's own steady clock
    deaf: bool = False  # the store could not be asked just now: no conclusion from what the node has not said
    patience_s: float = 120.0  # silence of its provider's nodes beyond this means that they are lost
    wished_s: float = 0.0  # since the server first told this attempt's agent to stop, likewise
    outlives_s: float = 0.0  # the longest that a node stays without word from the server; 0: unknown
    unasked: tuple[str, ...] = ()  # keys of nodes that could not even be asked for yet: they cost nothing
    waits: str = ""  # why that of the newest attempt could not, in words: somebody has to repair it
    waits_hint: str = ""  # what to do about it
    lingers_s: float = 0.0  # the longest that it stays behind its last report, likewise
    said_at: datetime | None = None  # when its store was given the last report, by the store's own clock; None: not yet
    trouble: str = ""  # why the provider could not start the node, in words
    trouble_hint: str = ""  # what to do about it
    trouble_code: str = ""  # of that error, such as `no-capacity`
