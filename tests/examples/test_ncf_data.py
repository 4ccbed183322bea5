"""The recommender's data: every MovieLens format, the split, personal ratings, downloads, and whatever may be wrong."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from project import Project

NCF = Project("ncf")
dataset, download, films, generate, movielens, personal, ratings, samples, source = NCF.modules(
    "dataset", "download", "films", "generate", "movielens", "personal", "ratings", "samples", "source"
)
Problem = download.Problem
NAMES = ["Toy Story (1995)", "Matrix, The (1999)", 'Say "Cheese" (2001)', "Amélie (2001)"]


def write_set(folder: Path, rows: list[tuple[int, int, float, int]], titles: int = 60, form: str = "csv") -> Path:
    """A small set in one of the three formats; film n has the id 10 n."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [(10 * n, NAMES[n] if n < len(NAMES) else f"Film {n}, The (19{n % 90 + 10})") for n in range(titles)]
    if form == "csv":
        lines = ["userId,movieId,rating,timestamp", *(f"{u},{f},{r:.1f},{t}" for u, f, r, t in rows)]
        quoted = [f'{n},"{title.replace(chr(34), chr(34) * 2)}",Comedy|Drama' for n, title in named]
        (folder / "ratings.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "movies.csv").write_text("\n".join(["movieId,title,genres", *quoted]) + "\n", encoding="utf-8")
    elif form == "dat":
        text = "".join(f"{u}::{f}::{r:.0f}::{t}\n" for u, f, r, t in rows)
        (folder / "ratings.dat").write_text(text, encoding="latin-1")
        text = "".join(f"{n}::{title}::Comedy|Drama\n" for n, title in named)
        (folder / "movies.dat").write_text(text, encoding="latin-1")
    else:
        text = "".join(f"{u}\t{f}\t{r:.0f}\t{t}\n" for u, f, r, t in rows)
        (folder / "u.data").write_text(text, encoding="latin-1")
        marks = "|".join("1" if name in ("Comedy", "Drama") else "0" for name in films.GENRES_100K)
        text = "".join(f"{n}|{title}|01-Jan-1995||http://x|{marks}\n" for n, title in named)
        (folder / "u.item").write_text(text, encoding="latin-1")
    return folder


def some_rows(users: int = 6, each: int = 25) -> list[tuple[int, int, float, int]]:
    """User u rates films u, u+1, … in order of time; every fifth rating is a 1, the others are 4."""
    return [
        (u, 10 * ((u + k) % 58), 1.0 if k % 5 == 0 else 4.0, 1000 + k) for u in range(1, users + 1) for k in range(each)
    ]


def prepared(folder: Path, **how: Any) -> Any:
    return dataset.prepare(movielens.open_folder(folder), folder.parent / "cache", **how)


def refusal(folder: Path) -> str:
    with pytest.raises(Problem) as caught:
        found = movielens.open_folder(folder)
        found.films()
        prepared(folder)
    assert not list(folder.parent.glob("cache/*")), "nothing half-written"
    return str(caught.value)


@pytest.mark.parametrize("form", ["csv", "dat", "100k"])
def test_every_format_gives_the_same_data(tmp_path: Path, form: str) -> None:
    plain = prepared(write_set(tmp_path / "a" / "plain", some_rows()))
    folder = write_set(tmp_path / "b" / "other", some_rows(), form=form)
    other = prepared(folder)
    for name in ("user_ids", "film_ids", "liked", "like_at", "disliked", "test_films", "test_negatives"):
        assert np.array_equal(getattr(plain, name), getattr(other, name)), name
    catalogue = movielens.open_folder(folder).films()
    assert [catalogue.by_id[10 * n].title for n in range(4)] == NAMES
    assert catalogue.by_id[30].genres == "Comedy|Drama"


def test_ratings_are_read_like_a_slow_reader_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks that end anywhere, with ids and times of any length, odd numbers, and Windows' line ends."""
    monkeypatch.setattr(ratings, "BLOCK_BYTES", 97)
    rng = np.random.default_rng(3)
    stars = ["4", "4.5", "0.5", "3.75", "5.0", "0", "3.", "1e0"]
    rows = [
        (rng.integers(10 ** (k % 9 + 1)), rng.integers(200_000), stars[k % 8], rng.integers(2**40)) for k in range(400)
    ]
    text = "timestamp,rating,userId,movieId\r\n" + "\r\n".join(f"{t},{r},{u},{f}" for u, f, r, t in rows)
    (tmp_path / "ratings.csv").write_text(text)
    found = ratings.read_ratings(tmp_path / "ratings.csv", ",", header=True)
    assert found.users.tolist() == [row[0] for row in rows]
    assert found.films.tolist() == [row[1] for row in rows]
    assert found.times.tolist() == [row[3] for row in rows]
    assert found.tenths.tolist() == [round(10 * float(row[2])) for row in rows]


def test_newest_like_is_held_out_and_users_with_few_ratings_are_left_out(tmp_path: Path) -> None:
    rows = [*some_rows(), *((99, 10 * k, 5.0, k) for k in range(19))]
    rows.append((1, 590, 5.0, 9_999))  # the only rating of that film, and the newest of user 1
    rows.append((2, 20, 2.0, 9_999))  # a second rating of a film: the newer counts, and it is a dislike
    found = prepared(write_set(tmp_path / "set", rows))
    assert found.user_ids.tolist() == [1, 2, 3, 4, 5, 6]
    held_out = dict(zip(found.user_ids[found.test_users], found.film_ids[found.test_films], strict=True))
    assert held_out == {1: 590, **{u: 10 * ((u + 24) % 58) for u in range(2, 7)}}
    assert found.film_ids[found.liked].tolist().count(590) == 0
    assert found.films == len({row[1] for row in rows if row[0] != 99}), "a film only in the test has a number, too"
    dislikes = found.film_ids[found.disliked[found.dislike_at[1] : found.dislike_at[2]]]
    assert dislikes.tolist() == [20, 70, 120, 170, 220]
    for row, user in enumerate(found.test_users):
        assert not set(found.test_negatives[row]) & set(found.rated_by(user)), "a negative is a film not rated"


def test_preparing_is_done_once_per_content_and_the_data_is_not_touched(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", some_rows())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    first = prepared(folder)
    (made,) = (tmp_path / "cache").iterdir()
    stamp = (made / "liked.npy").stat().st_mtime_ns
    assert np.array_equal(prepared(folder).test_negatives, first.test_negatives)
    assert (made / "liked.npy").stat().st_mtime_ns == stamp
    write_set(folder, some_rows(users=7))
    assert prepared(folder).users == 7, "other content is other data"
    write_set(folder, some_rows())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_low_rating_is_no_like_unless_everything_seen_is_asked_for(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", some_rows())
    assert (len(prepared(folder).liked), len(prepared(folder).disliked)) == (6 * 19, 6 * 5)
    published = prepared(folder, liked_from=0)
    assert (len(published.liked), len(published.disliked)) == (6 * 24, 0)


def test_likes_meet_films_the_user_does_not_like_one_of_them_disliked(tmp_path: Path) -> None:
    found = prepared(write_set(tmp_path / "set", some_rows()))
    batches = samples.Samples(found, groups=40, negatives=4, seed=1)
    assert len(batches) == -(-len(found.liked) // 40)
    seen, wrong = [], 0
    for number in range(len(batches)):
        users, shown = batches.batch(0, number)
        seen += list(zip(users.tolist(), shown[:, 0].tolist(), strict=True))
        for user, row in zip(users, shown, strict=True):
            likes = found.liked[found.like_at[user] : found.like_at[user + 1]]
            wrong += len(set(row[1:]) & set(likes))
            assert row[1] in found.disliked[found.dislike_at[user] : found.dislike_at[user + 1]]
    owners = np.repeat(np.arange(found.users), np.diff(found.like_at))
    assert sorted(seen) == list(zip(owners.tolist(), found.liked.tolist(), strict=True)), "each like once"
    assert wrong <= 1, "of hundreds"
    again = samples.Samples(found, groups=40, negatives=4, seed=1).batch(0, 2)
    assert np.array_equal(again[1], batches.batch(0, 2)[1]), "a batch is a function of its number"
    assert not np.array_equal(batches.batch(1, 2)[1], batches.batch(0, 2)[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ratings.csv:1: is empty"),
        ("userId,movieId,rating,timestamp\n", "ratings.csv: holds no ratings"),
        ("userId,movieId,rating\n1,2,3.0\n", "ratings.csv:1: there is no column `timestamp`"),
        ("userId;movieId;rating;timestamp\n1;2;3.0;4\n", "ratings.csv:1: fields are separated by ';'; expected ','"),
        (
            "userId,movieId,rating,timestamp\n1,2,3.0,4\n1,2,3.0\n",
            "ratings.csv:3: found 3 fields in `1,2,3.0`; expected 4",
        ),
        ("userId,movieId,rating,timestamp\n1,2,3.0,4\n\n1,3,3.0,4\n", "ratings.csv:3: found 1 field"),
        ("userId,movieId,rating,timestamp\n1,2,3.0,4\n1,x,3.0,4\n", "ratings.csv:3: expected numbers"),
        ("userId,movieId,rating,timestamp\n1,2,3.0,4\n1,-2,3.0,4\n", "ratings.csv:3: expected numbers"),
        ("userId,movieId,rating,timestamp\n1,2,7.0,4\n", "ratings.csv:2: the rating is out of range; expected 0 to 5"),
        ("userId,movieId,rating,timestamp\n1,2,nan,4\n", "ratings.csv:2: the rating is out of range"),
        ("userId,movieId,rating,timestamp\n1,99999999999,3.0,4\n", "ratings.csv:2: `movieId` is 99999999999"),
        ("userId,movieId,rating,timestamp\n1,2,3.0,4\n", "ratings.csv: no user has 20 ratings; the most is 1"),
    ],
)
def test_bad_ratings_are_refused_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    folder = write_set(tmp_path / "set", some_rows())
    (folder / "ratings.csv").write_text(text)
    assert words in refusal(folder)


def test_bad_films_are_refused_with_their_line(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", some_rows())
    good = (folder / "movies.csv").read_text(encoding="utf-8")
    (folder / "movies.csv").write_bytes(good.encode("latin-1"))
    assert "movies.csv:5: byte 0xe9 is not utf-8; convert it with `iconv" in refusal(folder)
    (folder / "movies.csv").write_text(good.replace("title", "name"), encoding="utf-8")
    assert "movies.csv:1: there is no column `title`" in refusal(folder)
    (folder / "movies.csv").write_text(good.replace("50,", "fifty,"), encoding="utf-8")
    assert "movies.csv:7: the film's id is `fifty`" in refusal(folder)
    (folder / "movies.csv").unlink()
    assert "holds `ratings.csv` but not `movies.csv`" in refusal(folder)


def test_a_file_of_the_set_instead_of_its_folder_is_refused_and_nobody_is_told_to_delete_it(tmp_path: Path) -> None:
    ratings = write_set(tmp_path / "ml-x", some_rows()) / "ratings.csv"
    with pytest.raises(Problem, match=r"ratings\.csv: is neither a zip file nor a folder; expected the folder"):
        source.open_source(str(ratings), tmp_path / "cache")


def test_truncated_zip_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "ml-x", some_rows())
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in folder.iterdir():
            packed.write(path, f"ml-x/{path.name}")
    archive, cache = tmp_path / "ml-x.zip", tmp_path / "cache"
    for broken in (whole.getvalue()[:-200], b"", b"PK"):
        archive.write_bytes(broken)
        with pytest.raises(Problem, match=r"ml-x.zip: is no complete zip file"):
            source.open_source(str(archive), cache)
        assert not list(cache.iterdir())
    archive.write_bytes(whole.getvalue())
    assert source.open_source(str(archive), cache).films().by_id[0].title == "Toy Story (1995)"


# Personal ratings

CATALOGUE = films.Films(
    [films.Film(10 * n, title) for n, title in enumerate(NAMES + [f"Film {k} (2000)" for k in range(40)])]
)


def opinions(path: Path, *lines: str, fill: int = 20) -> list[tuple[int, float]]:
    path.write_text("\n".join([*lines, *(f"Film {k} (2000), 4" for k in range(fill))]), encoding="utf-8")
    return [(one.film_id, one.rating) for one in personal.read_personal(path, CATALOGUE, {})]


def test_titles_with_commas_quotes_and_accents_are_found(tmp_path: Path) -> None:
    lines = (
        "# mine",
        "title, rating",
        "",
        "Matrix, The (1999), 4.5",
        '"Say ""Cheese"" (2001)",2',
        "amélie (2001) , 0.5",
    )
    assert opinions(tmp_path / "mine.csv", *lines)[:3] == [(10, 4.5), (20, 2.0), (30, 0.5)]
    assert opinions(tmp_path / "mine.csv", "The Matrix (1999), 5")[0] == (10, 5.0), "as one would say it"


def test_all_problems_of_a_personal_file_are_reported_at_once(tmp_path: Path) -> None:
    lines = (
        "Matrx, The (1999), 4",
        "Toy Story (1995), 7",
        "Toy Story (1995)",
        "Amélie (2001), good",
        "Film 0 (2000), -1",
    )
    with pytest.raises(Problem) as caught:
        opinions(tmp_path / "mine.csv", *lines, "Film 1 (2000), 3")
    first, *told = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
    assert first == "mine.csv has 6 problems"
    assert told[0].startswith(
        "  mine.csv:1: no film is called `Matrx, The (1999)`; the nearest are `Matrix, The (1999)`, `"
    )
    assert told[0].count("`") == 2 + 6, "three of them"
    assert told[1:] == [
        "  mine.csv:2: the rating is 7; expected 0 to 5",
        "  mine.csv:3: found `Toy Story (1995)`; expected `title, rating`",
        "  mine.csv:4: the rating is `good`; expected a number from 0 to 5",
        "  mine.csv:5: the rating is -1; expected 0 to 5",
        "  mine.csv:8: `Film 1 (2000)` has a rating in line 6 already",
    ]


def test_too_few_and_unreadable_personal_ratings_are_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    with pytest.raises(Problem, match=r"holds 19 ratings; expected 20 or more"):
        opinions(mine, fill=19)
    with pytest.raises(Problem, match=r"mine.csv: is empty"):
        opinions(mine, "# nothing yet", fill=0)
    mine.write_bytes("Film 1 (2000), 3\nAmélie (2001), 4".encode("latin-1"))
    with pytest.raises(Problem, match=r"mine.csv:2: byte 0xe9 is not utf-8"):
        personal.read_personal(mine, CATALOGUE, {})
    with pytest.raises(Problem, match="there is no such file"):
        personal.read_personal(tmp_path / "other.csv", CATALOGUE, {})


def test_personal_ratings_change_nothing_for_others(tmp_path: Path) -> None:
    """Not even if nobody else has rated a film of theirs."""
    found = prepared(write_set(tmp_path / "set", some_rows()))
    mine = [personal.Opinion(590, 5.0), *(personal.Opinion(10 * n, 4.0 if n % 2 else 0.5) for n in range(1, 21))]
    more = dataset.with_personal(found, mine, 3.5, tmp_path / "mine.csv")
    assert (more.users, more.films) == (found.users + 1, found.films + 1)
    for name in ("test_users", "test_films", "test_negatives"):
        assert getattr(more, name) is getattr(found, name)
    assert set(more.film_ids[more.rated_by(more.users - 1)]) == {590, *range(10, 210, 10)}
    likes = more.film_ids[more.liked[more.like_at[-2] :]]
    assert sorted(likes) == [10, 30, 50, 70, 90, 110, 130, 150, 170, 190, 590], "a 0.5 is not a like"
    with pytest.raises(Problem, match="nothing you like to go by"):
        dataset.with_personal(found, [personal.Opinion(10, 0.5)], 3.5, tmp_path / "mine.csv")


def test_example_ratings_are_of_films_that_exist(tmp_path: Path) -> None:
    made = movielens.open_folder(generate.generate(tmp_path / "made")).films()
    assert len(personal.read_personal(NCF.folder / "my_ratings.csv", made, {})) == 22


# Downloads


@pytest.fixture
def archive(tmp_path: Path, site: tuple[Any, str]) -> tuple[Any, str]:
    held = io.BytesIO()
    folder = write_set(tmp_path / "ml-x", some_rows())
    with zipfile.ZipFile(held, "w") as packed:
        for path in folder.iterdir():
            packed.write(path, f"ml-x/{path.name}")
    site[0].content = held.getvalue()
    return site


def test_download_resumes_where_it_was_cut_off_and_is_done_once(tmp_path: Path, archive: tuple[Any, str]) -> None:
    handler, url = archive
    handler.cuts = 2
    known = download.Archive(url, hashlib.md5(handler.content).hexdigest())
    place = download.download("ml-x", tmp_path / "cache", known, pause_s=0)
    size = len(handler.content)
    assert handler.asked == [None, f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"]
    assert movielens.open_folder(place).ratings().users.max() == 6
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["ml-x"], "the archive is not kept"
    assert download.download("ml-x", tmp_path / "cache", known) == place
    assert len(handler.asked) == 3


def test_wrong_checksum_fails_and_leaves_nothing(tmp_path: Path, archive: tuple[Any, str]) -> None:
    handler, url = archive
    expected = hashlib.md5(handler.content).hexdigest()
    handler.content = handler.content[:-1] + b"?"
    with pytest.raises(Problem, match=rf"has the md5 {hashlib.md5(handler.content).hexdigest()}; expected {expected}"):
        download.download("ml-x", tmp_path / "cache", download.Archive(url, expected), pause_s=0)
    assert not list((tmp_path / "cache").iterdir())


def test_unreachable_archive_is_a_failure_with_a_message(tmp_path: Path) -> None:
    archive = download.Archive("http://127.0.0.1:9/ml-x.zip", "0" * 32)
    with pytest.raises(Problem, match=r"could not be fetched: .*; nothing came"):
        download.download("ml-x", tmp_path / "cache", archive, pause_s=0)
    with pytest.raises(Problem, match="known are generated, ml-100k, ml-1m, ml-20m, ml-25m"):
        source.open_source("ml-9m", tmp_path)
