"""How good a model is: whether the film held out is among the ten best of a hundred and one, and how far up."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from dataset import Dataset, prepare
from model import NeuMF
from problem import told
from result import Result
from source import open_source

AT_ONCE = 512  # users scored together


@torch.no_grad()
def evaluate(model: NeuMF, dataset: Dataset, top: int = 10, part: slice = slice(None)) -> tuple[float, float, int]:
    """Sums of hits and of gains, and how many users they are of: those in `part`, for processes that share the work."""
    device = model.last.weight.device
    tables = model.tables()
    hits = gains = 0.0
    users, films, negatives = dataset.test_users[part], dataset.test_films[part], dataset.test_negatives[part]
    for at in range(0, len(users), AT_ONCE):
        here = slice(at, at + AT_ONCE)
        candidates = np.concatenate([films[here, None], negatives[here]], axis=1)
        rows = tables.rows(torch.from_numpy(users[here]).to(device), torch.from_numpy(candidates).to(device))
        scores = model.score(rows).float()
        # A tie counts against the model: one that gives everything the same score has found nothing.
        rank = (scores[:, 1:] >= scores[:, :1]).sum(dim=1)
        hit = rank < top
        hits += hit.sum().item()
        gains += (hit / torch.log2(rank + 2.0)).sum(dtype=torch.float64).item()
    return hits, gains, len(users)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)  # the model.pt that train.py wrote
    parser.add_argument("--data", help="where its data is, if not where it was")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-ncf"))
    parser.add_argument("--top", type=int, default=10)  # how many count as found
    args = parser.parse_args()
    with told():
        result = Result.load(args.model)
        cache = args.cache.expanduser()
        dataset = prepare(open_source(args.data or result.data, cache), cache, result.liked_from)
        result.check(dataset, args.model)
        hits, gains, users = evaluate(result.model(), dataset, args.top)
        print(json.dumps({f"hr@{args.top}": hits / users, f"ndcg@{args.top}": gains / users, "users": users}))
