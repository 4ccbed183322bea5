"""Makes a data set of any size in the shape of MovieLens, with taste planted in it: people who like two genres."""

import argparse
import csv
from pathlib import Path
from typing import TypeVar

import numpy as np
from folder import appearing
from problem import Problem, told
from ratings import COLUMNS

Numbers = TypeVar("Numbers", int, np.ndarray)  # one, or many at once

NOUNS = {
    "Action": "Bullet Convoy Deadline Avalanche Getaway Strike Rampage Ambush",
    "Comedy": "Wedding Parrot Landlord Picnic Impostor Mother-in-Law Holiday Fiasco",
    "Crime": "Heist Informer Alibi Ransom Verdict Syndicate Forger Ledger",
    "Drama": "Winter Inheritance Silence Harbour Promise Daughter Farewell Orchard",
    "Fantasy": "Dragon Sorcerer Enchantment Griffin Prophecy Kingdom Goblin Moonstone",
    "Horror": "Crypt Possession Cellar Whisper Coffin Butcher Séance Haunting",
    "Musical": "Serenade Ballroom Overture Cabaret Refrain Encore Chorus Café",
    "Mystery": "Manuscript Disappearance Key Portrait Riddle Clairvoyant Footprint Stranger",
    "Romance": "Kiss Letter Sweetheart Señorita Proposal Valentine Honeymoon Rendezvous",
    "Sci-Fi": "Nebula Android Wormhole Colony Starship Signal Clone Singularity",
    "Thriller": "Hostage Witness Double Conspiracy Blackout Countdown Pursuit Cipher",
    "Western": "Canyon Saddle Marshal Prairie Outlaw Stagecoach Rattlesnake Frontier",
}
ADJECTIVES = (
    "Silent", "Last", "Crimson", "Lonely", "Golden", "Broken", "Hidden", "Seventh", "Restless", "Midnight", "Frozen",
    "Wild", "Forgotten", "Burning", "Secret", "Distant", "Électric", "Crooked", "Endless", "Borrowed",
)  # fmt: skip
GENRES = tuple(NOUNS)
LOVED, LIKED = 0.55, 0.30  # how often someone picks a film of their first and second genre; others share the rest
FIRST_DAY, DAYS = 1_000_000_000, 6_000  # in unix seconds; MovieLens spans about as long


def film_id(number: Numbers) -> Numbers:
    """With gaps, as in MovieLens: an id is not a row."""
    return 3 * number + 1


def genre_of(number: int) -> str:
    return GENRES[number % len(GENRES)]


def title_of(number: int) -> str:
    """The same film has the same title in a set of any size."""
    genre, rest = genre_of(number), number // len(GENRES)
    nouns = NOUNS[genre].split()
    noun, rest = nouns[rest % len(nouns)], rest // len(nouns)
    adjective, sequel = ADJECTIVES[rest % len(ADJECTIVES)], rest // len(ADJECTIVES)
    name = f"{adjective} {noun}" + (f" {sequel + 1}" if sequel else "")
    article = ", The" if number // len(GENRES) % 3 == 0 else ""
    return f"{name}{article} ({1950 + number * 37 % 70})"


def generate(folder: Path, users: int = 943, films: int = 1682, ratings: int = 100_000, seed: int = 1) -> Path:
    """Writes `ratings.csv` and `movies.csv`; the folder appears when both are complete. Twice is done once."""
    if folder.is_dir():
        return folder
    if films < 2 * len(GENRES) or ratings > users * films // 4 or ratings < 20 * users:
        limits = f"{20 * users} to {users * films // 4} ratings, and at least {2 * len(GENRES)} films"
        raise Problem(
            folder, None, f"cannot hold {ratings} ratings of {films} films by {users} users; possible: {limits}"
        )
    with appearing(folder) as place:
        _write_films(place / "movies.csv", films)
        _write_ratings(place / "ratings.csv", users, films, ratings, np.random.default_rng(seed))
    return folder


def _write_films(path: Path, films: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["movieId", "title", "genres"])
        writer.writerows([film_id(number), title_of(number), genre_of(number)] for number in range(films))


def _write_ratings(path: Path, users: int, films: int, ratings: int, rng: np.random.Generator) -> None:
    taste = rng.permuted(np.tile(np.arange(len(GENRES)), (users, 1)), axis=1)[:, :2]
    pairs = _pairs(taste, films, ratings, rng)
    user, film = pairs // films, pairs % films
    love = np.where((film % len(GENRES))[:, None] == taste[user], [[4.4, 4.0]], 0.0).max(axis=1)
    stars = np.where(love > 0, love, 2.4) + rng.normal(0, 0.6, len(pairs))
    tenths = (np.clip(np.round(2 * stars), 1, 10) * 5).astype(np.int64)
    joined = rng.integers(0, DAYS // 2, users) * 86_400 + FIRST_DAY
    time = joined[user] + rng.integers(0, DAYS // 2 * 86_400, len(pairs))
    with path.open("wb") as file:
        file.write(",".join(COLUMNS).encode() + b"\n")
        for at in range(0, len(pairs), 500_000):
            part = slice(at, at + 500_000)
            file.write(_lines(user[part] + 1, film_id(film[part]), tenths[part], time[part]))


def _pairs(taste: np.ndarray, films: int, ratings: int, rng: np.random.Generator) -> np.ndarray:
    """Who has seen what, as user times films plus film, each once: by taste, and by how well known a film is."""
    eagerness = rng.lognormal(0, 0.8, len(taste))
    everybody = np.repeat(np.arange(len(taste)), 24)  # so that hardly anyone has fewer than twenty
    keen = rng.choice(len(taste), size=ratings, p=eagerness / eagerness.sum())
    seen = np.empty(0, np.int64)
    fame = [_fame(len(range(genre, films, len(GENRES))), rng) for genre in range(len(GENRES))]
    wanted = np.concatenate([everybody, keen[: max(0, ratings - len(everybody))]])
    while True:
        seen = np.unique(np.concatenate([seen, wanted * films + _choose(taste[wanted], fame, rng)]))
        missing = ratings - len(seen)
        if missing <= 0:
            return np.delete(seen, rng.choice(len(seen), -missing, replace=False)) if missing else seen
        wanted = rng.choice(len(taste), size=missing + missing // 4 + 1)


def _fame(count: int, rng: np.random.Generator) -> np.ndarray:
    """The share of a genre's audience up to each of its films."""
    weights = 1 / (rng.permutation(count) + 12) ** 0.8
    return np.cumsum(weights / weights.sum())


def _choose(taste: np.ndarray, fame: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mood = rng.random(len(taste))
    genre = np.where(mood < LOVED, taste[:, 0], taste[:, 1])
    stray = mood >= LOVED + LIKED
    genre[stray] = rng.integers(0, len(GENRES), int(stray.sum()))
    luck, chosen = rng.random(len(taste)), np.empty(len(taste), np.int64)
    for number, shares in enumerate(fame):
        here = genre == number
        rank = np.minimum(np.searchsorted(shares, luck[here]), len(shares) - 1)
        chosen[here] = rank * len(GENRES) + number
    return chosen


def _lines(user: np.ndarray, film: np.ndarray, tenths: np.ndarray, time: np.ndarray) -> bytes:
    """Many lines of text at once: a table of digits, from which leading zeros are left out."""
    cells, kept = [], []
    for values, end in ((user, ","), (film, ","), (tenths // 10, "."), (tenths % 10, ","), (time, "\n")):
        powers = 10 ** np.arange(len(str(int(values.max()))) - 1, -1, -1)
        cells += [(values[:, None] // powers % 10 + 48).astype(np.uint8), np.full((len(values), 1), ord(end), np.uint8)]
        kept += [(values[:, None] >= powers) | (powers == 1), np.ones((len(values), 1), bool)]
    text: np.ndarray = np.hstack(cells)[np.hstack(kept)]
    return text.tobytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, default=943)  # the defaults are the size of MovieLens 100k
    parser.add_argument("--films", type=int, default=1682)
    parser.add_argument("--ratings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)  # another seed, other tastes
    args = parser.parse_args()
    with told():
        print(generate(args.folder, args.users, args.films, args.ratings, args.seed))
