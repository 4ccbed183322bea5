"""Ten films for you, or for anyone in the data: predictions.csv with every film not yet rated, and a page."""

import argparse
import csv
import os
import sys
from pathlib import Path

import torch
from dataset import ME, prepare
from folder import replacing
from page import Suggestion, page
from problem import Problem, told
from result import Result
from source import open_source


def suggestions(result: Result, user: int, rated: set[int]) -> list[Suggestion]:
    """Every film but the rated ones, best first. `user` is the model's row, `rated` holds ids of films."""
    films = torch.arange(len(result.film_ids))
    with torch.no_grad():
        scores = torch.sigmoid(result.model()(torch.tensor([user]), films[None])).squeeze(0)
    order = torch.argsort(scores, descending=True, stable=True).tolist()
    ids = result.film_ids.tolist()
    return [
        Suggestion(ids[at], result.titles[at] or f"film {ids[at]}", result.genres[at], scores[at].item())
        for at in order
        if ids[at] not in rated
    ]


def row_of(result: Result, user: int, path: Path) -> int:
    ids = result.user_ids.tolist()
    if user in ids:
        return ids.index(user)
    if user == ME:
        raise Problem(path, None, f"was trained without personal ratings; name a user, such as --user {ids[0]}")
    raise Problem(path, None, f"knows no user {user}; whoever has fewer than 20 ratings is left out")


def rated_by(result: Result, user: int, data: str | None, cache: Path, path: Path) -> set[int]:
    """Ids of films. Yours are in the model; those of others are looked up in the data."""
    if user == ME:
        return set(result.mine)
    dataset = prepare(open_source(data or result.data, cache), cache, result.liked_from)
    result.check(dataset, path)
    row = row_of(result, user, path)
    if dataset.like_at[row] == dataset.like_at[row + 1]:
        raise Problem(path, None, f"user {user} likes no film, so there is nothing to go by")
    return set(dataset.film_ids[dataset.rated_by(row)].tolist())


def write(found: list[Suggestion], who: str, result: Result, folder: Path) -> None:
    with replacing(folder / "predictions.csv") as new, new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["title", "score", "genres", "movieId"])
        writer.writerows([one.title, f"{one.score:.4f}", one.genres, one.film_id] for one in found)
    with replacing(folder / "recommendations.html") as new:
        new.write_text(page(found[:30], who, result.metrics), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)  # the model.pt that train.py wrote
    parser.add_argument("--user", type=int, default=ME)  # an id of the data; without it: you
    parser.add_argument("--count", type=int, default=10)  # how many are printed
    parser.add_argument("--data", help="where the data is, if not where it was; only asked for users other than you")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-ncf"))
    parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()
    if int(os.environ.get("RANK", 0)):  # several processes were started with one command line: the first one does it
        sys.exit()
    with told():
        result = Result.load(args.model)
        row = row_of(result, args.user, args.model)
        rated = rated_by(result, args.user, args.data, args.cache.expanduser(), args.model)
        found = suggestions(result, row, rated)
        who = "you" if args.user == ME else f"user {args.user}"
        write(found, who, result, args.output_dir)
        print(f"for {who}:")
        for place, one in enumerate(found[: args.count], 1):
            print(f"{place:3}. {one.title}  [{one.genres}]  {one.score:.2f}")
        print(f"all {len(found):,} films are in {args.output_dir}/predictions.csv; see also recommendations.html")
