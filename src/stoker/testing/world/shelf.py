"""The contents of the store for one run: orders, wishes, checkpoint sets and the fences between attempts."""

from __future__ import annotations

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
    """The server's message to an attempt."""

    wish: Wish = Wish.GO_ON
    notice: Notice | None = None
    fuse: Fuse | None = None


@dataclass(slots=True)
class WorldShelf:
    full: int = 0  # how many faults prevent writes
    hung: int = 0  # how many of those prevent reads, too
    orders: set[int] = field(default_factory=set)  # of attempts
    words: dict[int, Word] = field(default_factory=dict)
    told_at: dict[int, float] = field(default_factory=dict)  # by attempt: when its budget was sent
    begun: set[int] = field(default_factory=set)  # attempts with a first report: each starts once
    sets: dict[Position, Set] = field(default_factory=dict)
    fences: list[Fence] = field(default_factory=list)
    failures: int = 0  # attempts that ended with the script's own failure
    head: Set | None = None  # the true newest set of an attempt with the right to commit

    def is_fenced(self, attempt: int, incarnation: int = 1) -> bool:
        return checkpoint.fenced(attempt, self.fences, incarnation)

    def take_over(self, attempt: int, incarnation: int = 1) -> Set | None:
        """Raises the fence of an attempt: what it resumes from, as `agent/checkpoints/restoring.py` does."""
        self.fences.append(checkpoint.claim(attempt, incarnation))
        known = checkpoint.visible(self.sets, self.fences)
        found = self.sets[known[0]] if known else None
        self.fences[-1] = Fence(attempt, *(found.position if found else (0, 0)), incarnation)
        return found

    def commit(self, made: Set) -> None:
        self.sets[made.position] = made
        if not checkpoint.fenced(made.position[0], self.fences, checkpoint.author(made.position)[1]):
            self.head = made

    def word(self, attempt: int) -> Word:
        return self.words.get(attempt) or Word()
