"""How far a script is: what it reported, and when that was seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.model.node import Offer


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment of an attempt, by the server's clock: no two clocks have to agree."""

    at: datetime
    progress: float  # 0 to 1, as the script reported it
    stride: float = 0.0  # the greatest step between two values of this attempt so far
    saved: bool = False  # a checkpoint of the attempt was safe by then


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offer that was asked for ahead, and could not be had."""

    offer: Offer
    at: datetime
