"""The contents of the store for one run: orders, wishes, checkpoint sets and the fences between attempts, by node."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stoker.model import checkpoint
from stoker.model.checkpoint import Fence, Position
from stoker.model.node.orders import Notice, Wish
from stoker.model.run.money import Fuse


@dataclass(frozen=True, slots=True)
class Set:
    """A checkpoint: the amount of work in it."""

    position: Position
    done_s: float


@dataclass(slots=True)
class Word:
    """The server's message to a node of an attempt."""

    wish: Wish = Wish.GO_ON
    notice: Notice | None = None
    fuse: Fuse | None = None
    broken: bool = False  # another node of its gang has ended


class RunShelf:
    """One for each run, with a part for each of its nodes."""

    def __init__(self, nodes: int = 1) -> None:
        self.full = 0  # how many faults prevent writes
        self.hung = 0  # how many of those prevent reads, too
        self.failures = 0  # attempts that ended with the script's own failure
        self.parts = [WorldShelf(self) for _ in range(nodes)]


@dataclass(slots=True)
class WorldShelf:
    run: RunShelf
    orders: set[int] = field(default_factory=set)  # of attempts
    words: dict[int, Word] = field(default_factory=dict)
    told_at: dict[int, float] = field(default_factory=dict)  # by attempt: when its budget was sent
    begun: set[int] = field(default_factory=set)  # attempts with a first report: each starts once
    sets: dict[Position, Set] = field(default_factory=dict)
    fences: list[Fence] = field(default_factory=list)
    head: Set | None = None  # the true newest set of an attempt with the right to commit
    rightful: list[Set] = field(default_factory=list)  # all of those, up to the one that was last resumed from

    @property
    def full(self) -> int:
        return self.run.full

    def is_fenced(self, attempt: int, incarnation: int = 1) -> bool:
        return checkpoint.fenced(attempt, self.fences, incarnation)

    def take_over(self, attempt: int, incarnation: int = 1) -> Set | None:
        """Raises the fence of an attempt: what it resumes from, as `agent/checkpoints/restoring.py` does."""
        self.fences.append(checkpoint.claim(attempt, incarnation))
        return self.restore(attempt, incarnation)

    def restore(self, attempt: int, incarnation: int = 1, until: float = math.inf) -> Set | None:
        """The newest set with no more work than that. Nodes of a gang agree on one that all have."""
        known = [one for one in checkpoint.visible(self.sets, self.fences) if self.sets[one].done_s <= until]
        found = self.sets[known[0]] if known else None
        mine = Fence(attempt, *(found.position if found else (0, 0)), incarnation)
        self.fences = [mine if one.author == mine.author else one for one in self.fences]
        return found

    def resumed(self, found: Set | None) -> None:
        """Every node of a gang resumes from this one, or from nothing: what lies behind it no longer counts."""
        self.head = found
        self.rightful = [one for one in self.rightful if found and one.done_s <= found.done_s]

    def commit(self, made: Set) -> None:
        self.sets[made.position] = made
        if not checkpoint.fenced(made.position[0], self.fences, checkpoint.author(made.position)[1]):
            self.head = made
            self.rightful.append(made)

    def word(self, attempt: int) -> Word:
        return self.words.get(attempt) or Word()
