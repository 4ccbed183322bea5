"""Trains a film recommender, NeuMF, on MovieLens or on data it makes itself, with your own ratings if you like."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from dataset import Dataset, prepare, with_personal
from evaluate import evaluate
from films import Films
from learn import Seat, learn
from model import NeuMF
from personal import Opinion, read_personal
from problem import Problem, told
from result import Result
from samples import Samples
from source import open_source

import stoker
from stoker.checkpoint import Checkpoint

parser = argparse.ArgumentParser(description=__doc__)
# data
parser.add_argument("--data", default="generated")  # or a name: ml-100k, ml-1m, ml-20m, ml-25m; or a folder or zip file
parser.add_argument("--ratings", type=Path)  # your own: a file of `title, rating` lines
parser.add_argument("--liked_from", type=float, default=3.5)  # ratings from here on are likes; 0: all, as published
parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-ncf"))  # for downloads and prepared data
# model
parser.add_argument("--factors", type=int, default=64)  # of a user's and a film's taste
parser.add_argument("--layers", type=int, nargs="+", default=[256, 256, 128, 64])  # of the network beside them
parser.add_argument("--dropout", type=float, default=0.5)  # share of the network that is left out in each step
# training
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--batch_size", type=int, default=8192)  # samples, drawn ones included, over all processes
parser.add_argument("--grads_accumulated", type=int, default=1)  # batches that make one step of the optimizer
parser.add_argument("--negative_samples", type=int, default=4)  # films drawn against each like
parser.add_argument("--learning_rate", type=float, default=0.002)
parser.add_argument("--beta1", type=float, default=0.25)  # Adam's memory of the direction
parser.add_argument("--beta2", type=float, default=0.5)  # and of the size of the gradients
parser.add_argument("--eps", type=float, default=1e-8)
parser.add_argument("--piece", type=int, default=8192)  # samples computed at once; changes speed, not the result
parser.add_argument("--seed", type=int, default=1)
# end
parser.add_argument("--top", type=int, default=10)  # a hit is among this many
parser.add_argument("--target", type=float)  # stop at this hit rate; not getting there is a failure
parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
args = parser.parse_args()


DEVICE = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
)
IN_GROUP = 1 + args.negative_samples  # samples that belong to one like


class Material(NamedTuple):
    """What there is to learn. `mark` is of the data without the personal ratings."""

    dataset: Dataset
    films: Films
    opinions: list[Opinion]
    mark: str


def seat_of_this_process() -> Seat:
    """As torchrun and Stoker say it; processes meet here."""
    world, near = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if world == 1:
        return Seat()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // near))
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    return Seat(dist.get_rank(), world)


def load() -> Material:
    cache = args.cache.expanduser()
    source = open_source(args.data, cache)
    dataset, films = prepare(source, cache, args.liked_from), source.films()
    if args.ratings is None:
        return Material(dataset, films, [], dataset.mark)
    opinions = read_personal(args.ratings, films, dataset.seen_by())
    return Material(with_personal(dataset, opinions, args.liked_from, args.ratings), films, opinions, dataset.mark)


def load_in_turn(seat: Seat) -> Material:
    """The first process prepares the data, and the others find it prepared."""
    if seat.rank:
        dist.barrier()
    material = load()
    if seat.world > 1 and not seat.rank:
        dist.barrier()
    return material


def over_all(values: Sequence[float], seat: Seat) -> list[float]:
    """The sum of what the processes say."""
    sums = torch.tensor(values, dtype=torch.float64, device=DEVICE)
    if seat.world > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def train(seat: Seat) -> bool:
    """True unless there was a target and it was missed."""
    material = load_in_turn(seat)
    dataset = material.dataset
    torch.manual_seed(args.seed)
    model, champion = (NeuMF(dataset.users, dataset.films, args.factors, args.layers).to(DEVICE) for _ in range(2))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    betas = (args.beta1, args.beta2)
    optimizer = torch.optim.Adam(model.parameters(), args.learning_rate, betas, args.eps, fused=True)
    groups = max(1, args.batch_size * args.grads_accumulated // IN_GROUP)
    samples = Samples(dataset, groups, args.negative_samples, args.seed)
    tell(seat, f"{dataset.users:,} users, {dataset.films:,} films, {len(dataset.liked):,} likes to learn from")

    state = Checkpoint(model=model, champion=champion, optimizer=optimizer)
    check_settings(state, material)
    state.setdefault("best", -1.0)
    for epoch in state.epochs(args.epochs):
        begun, seen = time.perf_counter(), 0
        stop = False
        for number in state.batches(range(len(samples))):
            users, films = (torch.from_numpy(one).to(DEVICE) for one in samples.batch(epoch, number))
            optimizer.zero_grad(set_to_none=False)
            place = [args.seed, epoch, number]
            state["loss"] = learn(model, users, films, max(1, args.piece // IN_GROUP), args.dropout, place, seat)
            optimizer.step()
            seen += films.numel()
            state.step()
            if stop := over_all([stoker.should_stop()], seat)[0] > 0:  # the run's `stop_when` is reached
                break
        if stop:
            break
        speed = seen / (time.perf_counter() - begun)
        hits, gains, judged = over_all(evaluate(model, dataset, args.top, slice(seat.rank, None, seat.world)), seat)
        rate, gain = hits / judged, gains / judged
        state.report(
            **{f"hr@{args.top}": rate, f"ndcg@{args.top}": gain, "loss": state["loss"], "samples_per_s": speed}
        )
        measured = f"hr@{args.top} {rate:.4f}  ndcg@{args.top} {gain:.4f}"
        tell(seat, f"epoch {epoch + 1:3}  loss {state['loss']:.4f}  {measured}  {speed:,.0f} samples/s")
        if rate > state["best"]:
            state["best"], state["gain"] = rate, gain
            champion.load_state_dict(model.state_dict())
            keep(champion, material, state, seat)
        if args.target is not None and rate >= args.target:
            break
    keep(champion, material, state, seat)
    tell(seat, f"best hr@{args.top} {state['best']:.4f}; the model is {args.output_dir / 'model.pt'}")
    return args.target is None or state["best"] >= args.target


def tell(seat: Seat, text: str) -> None:
    if seat.rank == 0:
        print(text, flush=True)


def check_settings(state: Checkpoint, material: Material) -> None:
    """A checkpoint goes on with what it was begun with, or not at all."""
    free = ("epochs", "target", "top", "cache", "output_dir")
    now = {name: str(value) for name, value in vars(args).items() if name not in free}
    now["data"], now["ratings"] = material.mark, str(material.opinions)
    for name, before in state.setdefault("settings", now).items():
        if now[name] != before:
            changed = "has changed" if name in ("data", "ratings") else f"was {before} and is {now[name]}"
            raise Problem(
                state.restored or "the checkpoint",
                None,
                f"--{name} {changed}; to begin anew, move the checkpoints away",
            )


def keep(champion: NeuMF, material: Material, state: Checkpoint, seat: Seat) -> None:
    """The best model so far, with the names of its rows."""
    if seat.rank:
        return
    dataset = material.dataset
    known = [material.films.by_id.get(film_id) for film_id in dataset.film_ids.tolist()]
    Result(
        weights={name: weight.detach().cpu() for name, weight in champion.state_dict().items()},
        user_ids=torch.from_numpy(dataset.user_ids),
        film_ids=torch.from_numpy(dataset.film_ids),
        titles=[film.title if film else "" for film in known],
        genres=[film.genres if film else "" for film in known],
        mine=[opinion.film_id for opinion in material.opinions],
        data=args.data,
        mark=material.mark,
        liked_from=args.liked_from,
        metrics={f"hr@{args.top}": state["best"], f"ndcg@{args.top}": state.get("gain", 0.0)},
    ).save(args.output_dir / "model.pt")


if __name__ == "__main__":
    with told():
        if args.layers[0] % 2:
            raise Problem("--layers", None, f"the first is {args.layers[0]}; expected an even number")
        reached = train(seat_of_this_process())
    if not reached:
        sys.exit(f"error: the target, hr@{args.top} >= {args.target:g}, was not reached in {args.epochs} epochs")
