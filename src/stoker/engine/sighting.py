"""The observations of a run: the input of every decision about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.model.node.node import NodeSight
from stoker.model.run.report import Report


@dataclass(frozen=True, slots=True)
class Sighting:
    """`node` and `report` are the newest attempt's. None means: checked, and there is none."""

    node: NodeSight | None = None
    report: Report | None = None
    unmarked: bool = False  # its provider still shows its machine under the key of an earlier attempt
    spare: NodeSight | None = None  # of the node that was requested in advance
    leftovers: tuple[str, ...] = ()  # keys of earlier attempts whose nodes still exist
    nodes: tuple[NodeSight, ...] = ()  # all existing nodes of the run, including spares and leftovers: for the meter
    still: tuple[str, ...] = ()  # those of them that cannot work any more, and only cost
    refused: str = ""  # why its node's last report is not used
    refused_s: float = 0.0  # since its reports became unusable, by the server's monotonic clock
    silent_s: float = 0.0  # since the report last changed, by the server's monotonic clock
    deaf: bool = False  # the store is unavailable now: a missing report means nothing
    patience_s: float = 120.0  # silence of its provider's nodes beyond this means that they are lost
    wished_s: float = 0.0  # since the server first told this attempt's agent to stop, likewise
    renewed_at: datetime | None = None  # when this server last renewed the node's lease
    outlives_s: float = 0.0  # the longest that a node stays without contact with the server; 0: unknown
    unasked: tuple[str, ...] = ()  # keys of nodes that could not be requested yet: they cost nothing
    waits: str = ""  # why that of the newest attempt could not: a person has to fix it
    waits_hint: str = ""  # what to do about it
    lingers_s: float = 0.0  # the longest that it stays after its last report, likewise
    said_at: datetime | None = None  # when its store got the last report, by the store's own clock; None: not yet
    trouble: str = ""  # why the provider could not start the node
    trouble_hint: str = ""  # what to do about it
    trouble_code: str = ""  # of that error, such as `no-capacity`
    peers: tuple[Sighting, ...] = ()  # the same for the other nodes of a gang, without what concerns the whole run
