"""The samples of an epoch: every like with films drawn against it. A batch can be made again from its number."""

import numpy as np
from dataset import Dataset


class Samples:
    """`groups` likes make a batch; each is a row of one liked film and `negatives` others.

    Nothing here has a state: a batch is a function of seed, epoch and number, so a training that resumes in the middle
    of an epoch goes on with the very batches it would have had, on any number of processes.
    """

    def __init__(self, dataset: Dataset, groups: int, negatives: int, seed: int) -> None:
        self.dataset, self.groups, self.negatives, self.seed = dataset, groups, negatives, seed
        self._user_of = np.repeat(np.arange(dataset.users, dtype=np.int32), np.diff(dataset.like_at))
        self._known = _Known(self._user_of, dataset.liked, dataset.films)
        self._order: tuple[int, np.ndarray] = -1, np.empty(0)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.dataset.liked) // self.groups)

    def batch(self, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Users, and for each a row of films of which the first is liked."""
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(len(self.dataset.liked))
        rows = self._order[1][number * self.groups : (number + 1) * self.groups]
        users = self._user_of[rows]
        rng = np.random.Generator(np.random.SFC64([self.seed, epoch, number]))
        films = np.empty((len(rows), 1 + self.negatives), np.int32)
        films[:, 0] = self.dataset.liked[rows]
        films[:, 1:] = self._unliked(users, rng)
        return users, films

    def _unliked(self, users: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Films drawn at random, none that the user likes; one is a film the user dislikes, if there is any."""
        drawn = rng.integers(0, self.dataset.films, (len(users), self.negatives), dtype=np.int32)
        again = np.arange(drawn.size)
        for _ in range(20):  # for whoever likes nearly everything, a few that are still wrong do no harm
            again = again[self._known(users[again // self.negatives], drawn.flat[again])]
            drawn.flat[again] = rng.integers(0, self.dataset.films, len(again), dtype=np.int32)
        if len(self.dataset.disliked) and self.negatives:
            first = self.dataset.dislike_at[users]
            count = self.dataset.dislike_at[users + 1] - first
            which = first + (rng.random(len(users)) * count).astype(np.int64)
            some = count > 0
            drawn[some, 0] = self.dataset.disliked[which[some]]
        return drawn


class _Known:
    """Whether a user likes a film, answered from one bit of a hash table: a no is certain, a yes is wrong now and then,
    which costs another draw. A table of all pairs would not fit, and to search the likes takes longer."""

    def __init__(self, users: np.ndarray, films: np.ndarray, count: int) -> None:
        self._count = np.uint64(count)
        bits = max(10, int(np.ceil(np.log2(16 * max(1, len(users))))))
        self._shift = np.uint64(64 - bits)
        table = np.zeros(1 << bits, bool)
        table[self._slots(users, films)] = True
        self._bits = np.packbits(table, bitorder="little")

    def __call__(self, users: np.ndarray, films: np.ndarray) -> np.ndarray:
        slots = self._slots(users, films)
        known: np.ndarray = self._bits[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8) & 1
        return known.astype(bool)

    def _slots(self, users: np.ndarray, films: np.ndarray) -> np.ndarray:
        pairs = users.astype(np.uint64) * self._count + films.astype(np.uint64)
        return (pairs * np.uint64(0x9E3779B97F4A7C15)) >> self._shift
