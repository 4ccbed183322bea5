"""What is learned from and judged by: likes, dislikes, the film each user is tested with. Made once per content."""

import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from folder import appearing
from movielens import MovieLens
from personal import FEWEST, Opinion
from problem import Problem
from ratings import Ratings

VERSION = 1  # of what is kept in the cache
TEST_NEGATIVES = 100  # films that each test film has to beat
ME = 0  # the id of whoever wrote the personal ratings; MovieLens counts from 1


@dataclass(frozen=True)
class Dataset:
    """Users and films are numbered from 0; `user_ids` and `film_ids` say who they are in the files.

    Likes are sorted by user and film. Those of user `u` are `liked[like_at[u]:like_at[u + 1]]`; dislikes likewise.
    """

    user_ids: np.ndarray
    film_ids: np.ndarray
    like_at: np.ndarray
    liked: np.ndarray
    dislike_at: np.ndarray
    disliked: np.ndarray
    test_users: np.ndarray  # those with a film held out
    test_films: np.ndarray  # the newest like of each of them, which is not among their likes
    test_negatives: np.ndarray  # for each, films that the user has not rated

    @property
    def users(self) -> int:
        return len(self.user_ids)

    @property
    def films(self) -> int:
        return len(self.film_ids)

    def rated_by(self, user: int) -> np.ndarray:
        """Every film the user has an opinion on, the one held out, too."""
        likes = self.liked[self.like_at[user] : self.like_at[user + 1]]
        dislikes = self.disliked[self.dislike_at[user] : self.dislike_at[user + 1]]
        return np.concatenate([likes, dislikes, self.test_films[self.test_users == user]])

    @property
    def mark(self) -> str:
        """Tells this data from any other."""
        digest = hashlib.sha256()
        for part in (self.user_ids, self.film_ids, self.like_at, self.liked):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def seen_by(self) -> dict[int, int]:
        """How many have rated each film, by its id."""
        counts = np.bincount(np.concatenate([self.liked, self.disliked]), minlength=self.films)
        return dict(zip(self.film_ids.tolist(), counts.tolist(), strict=True))


def prepare(source: MovieLens, cache: Path, liked_from: float = 3.5) -> Dataset:
    """From the cache if these very ratings have been prepared before; the source is never written to.

    A rating of `liked_from` or more is a like, any other a dislike. With 0 everything seen is a like, as in the
    published benchmark.
    """
    with source.ratings_file.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    place = cache / f"prepared-{content[:20]}-{liked_from:g}-v{VERSION}"
    if not place.is_dir():
        dataset = _build(source, round(10 * liked_from))
        with appearing(place) as folder:
            for field in fields(Dataset):
                np.save(folder / f"{field.name}.npy", getattr(dataset, field.name))
    return Dataset(**{field.name: np.load(place / f"{field.name}.npy") for field in fields(Dataset)})


def with_personal(dataset: Dataset, opinions: list[Opinion], liked_from: float, path: Path) -> Dataset:
    """One more user at the end, and films nobody else has rated. Nothing is held out: others are judged as before."""
    known = set(dataset.film_ids.tolist())
    unknown = [one.film_id for one in opinions if one.film_id not in known]
    film_ids = np.concatenate([dataset.film_ids, np.array(unknown, np.int32)])
    number = {film_id: at for at, film_id in enumerate(film_ids.tolist())}
    likes = sorted(number[one.film_id] for one in opinions if one.rating >= liked_from)
    dislikes = sorted(number[one.film_id] for one in opinions if one.rating < liked_from)
    if not likes:
        raise Problem(path, None, f"no rating is {liked_from:g} or more, so there is nothing you like to go by")
    return replace(
        dataset,
        user_ids=np.append(dataset.user_ids, np.int32(ME)),
        film_ids=film_ids,
        like_at=np.append(dataset.like_at, dataset.like_at[-1] + len(likes)),
        liked=np.concatenate([dataset.liked, np.array(likes, np.int32)]),
        dislike_at=np.append(dataset.dislike_at, dataset.dislike_at[-1] + len(dislikes)),
        disliked=np.concatenate([dataset.disliked, np.array(dislikes, np.int32)]),
    )


def _build(source: MovieLens, liked_tenths: int) -> Dataset:
    ratings = _of_enough(source, source.ratings())
    user_ids, users = _renumbered(ratings.users)
    film_ids, films = _renumbered(ratings.films)
    like = ratings.tenths >= liked_tenths
    newest = _newest(users[like], ratings.times[like], len(user_ids))
    if not len(newest):
        raise Problem(source.ratings_file, None, "no user has two likes, so nobody can be tested")
    of_like, films_liked = users[like], films[like]
    test_users, test_films = of_like[newest], films_liked[newest]
    learned = np.ones(len(of_like), bool)
    learned[newest] = False
    rated = users.astype(np.int64) * len(film_ids) + films  # sorted, as the ratings are
    return Dataset(
        user_ids=user_ids,
        film_ids=film_ids,
        like_at=_offsets(of_like[learned], len(user_ids)),
        liked=films_liked[learned],
        dislike_at=_offsets(users[~like], len(user_ids)),
        disliked=films[~like],
        test_users=test_users,
        test_films=test_films,
        test_negatives=_negatives(source.ratings_file, test_users, rated, user_ids, len(film_ids)),
    )


def _of_enough(source: MovieLens, ratings: Ratings) -> Ratings:
    """Sorted by user and film, of two ratings of one film the newer, of users with twenty or more."""
    pairs = (ratings.users.astype(np.int64) << 32) | ratings.films
    if not (pairs[1:] > pairs[:-1]).all():
        order = np.lexsort((ratings.times, pairs))
        pairs = pairs[order]
        order = order[np.append(pairs[1:] != pairs[:-1], True)]
        ratings = Ratings(*(getattr(ratings, field.name)[order] for field in fields(Ratings)))
    del pairs
    starts = np.flatnonzero(np.diff(ratings.users, prepend=ratings.users[0] - 1))
    counts = np.diff(np.append(starts, len(ratings.users)))
    if counts.max() < FEWEST:
        raise Problem(source.ratings_file, None, f"no user has {FEWEST} ratings; the most is {counts.max()}")
    if counts.min() >= FEWEST:
        return ratings
    enough = np.repeat(counts >= FEWEST, counts)
    return Ratings(*(getattr(ratings, field.name)[enough] for field in fields(Ratings)))


def _renumbered(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, sorted, and for each entry which of them it is."""
    highest = int(ids.max())
    if highest > 8 * len(ids) + 1_000_000:  # a table of all ids would be mostly empty
        known, numbers = np.unique(ids, return_inverse=True)
        return known, numbers.astype(np.int32)
    present = np.zeros(highest + 1, bool)
    present[ids] = True
    number_of = np.cumsum(present, dtype=np.int32) - 1
    return np.flatnonzero(present).astype(np.int32), number_of[ids]


def _newest(users: np.ndarray, times: np.ndarray, count: int) -> np.ndarray:
    """The row of each user's newest like, for users with two or more; of equally new ones the first."""
    at = _offsets(users, count)
    several = np.flatnonzero(np.diff(at) >= 2)
    if not len(several):
        return several
    likes = np.diff(at)
    present = np.flatnonzero(likes)
    latest = np.zeros(count, times.dtype)
    latest[present] = np.maximum.reduceat(times, at[present])
    rows = np.flatnonzero(times == np.repeat(latest, likes))
    rows = rows[np.append(True, np.diff(users[rows]) > 0)]
    newest: np.ndarray = rows[likes[users[rows]] >= 2]
    return newest


def _offsets(users: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(users, minlength=count))])


def _negatives(file: Path, users: np.ndarray, rated: np.ndarray, user_ids: np.ndarray, films: int) -> np.ndarray:
    """For each user films they have not rated, always the same. `rated` is sorted: user times films plus film."""
    left = films - np.diff(np.searchsorted(rated, np.arange(len(user_ids) + 1) * films))[users]
    if left.min() == 0:
        user = user_ids[users[int(left.argmin())]]
        raise Problem(file, None, f"user {user} has rated every film, so there is nothing to tell apart")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, films, (len(users), TEST_NEGATIVES), dtype=np.int32)
    todo = np.arange(drawn.size)
    while len(todo):
        pairs = users[todo // TEST_NEGATIVES].astype(np.int64) * films + drawn.flat[todo]
        at = np.minimum(np.searchsorted(rated, pairs), len(rated) - 1)
        todo = todo[rated[at] == pairs]
        drawn.flat[todo] = rng.integers(0, films, len(todo), dtype=np.int32)
    return drawn
