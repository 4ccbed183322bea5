"""One step of the training, and what goes with it: the batches, the learning rate, several ranks."""

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from coco import Scenes, Target
from network import build, device
from problem import Problem
from ranks import RANK, WORLD
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

REFERENCE = 16  # images in a step for which the learning rate is given
Batch = tuple[list[Tensor], list[Target]]


def collate(items: list[tuple[Tensor, Target]]) -> Batch:
    return [pixels for pixels, _ in items], [target for _, target in items]


class OwnPart(Sampler[int]):
    """Images of this node alone, as many in an epoch as if all ranks shared all images, in an order of its own."""

    def __init__(self, scenes: Scenes, seed: int) -> None:
        self.here, self.count, self.seed, self.epoch = len(scenes), scenes.total // WORLD, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        chance = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1_000_003 + RANK)
        rounds = -(-self.count // self.here)
        order = torch.cat([torch.randperm(self.here, generator=chance) for _ in range(rounds)])
        return iter(order[: self.count].tolist())


def loader_of(scenes: Scenes, args: Namespace) -> tuple[DataLoader[Any], Any]:
    """The batches of this rank, and the sampler that is told of each epoch."""
    sampler: Any = OwnPart(scenes, args.seed) if args.sharded else _sampler(scenes, args)
    loader: DataLoader[Any] = DataLoader(
        scenes, args.batch_size, sampler=sampler, collate_fn=collate, num_workers=args.workers, drop_last=True
    )
    if not len(loader):
        least = WORLD * args.batch_size
        found = f"has {scenes.total} images; {WORLD} ranks with {args.batch_size} in a step need {least} or more"
        raise Problem(scenes.file, None, found)
    return loader, sampler


def _sampler(scenes: Scenes, args: Namespace) -> Any:
    return DistributedSampler(scenes, WORLD, RANK, seed=args.seed, drop_last=True)


class Learner:
    """The network, its optimizer and its schedule."""

    def __init__(self, classes: int, steps: int, args: Namespace) -> None:
        torch.manual_seed(args.seed)  # the same weights on every rank
        self.network = build(args.backbone, classes, args.image_size, args.pretrained).to(device())
        self.model: nn.Module = DistributedDataParallel(self.network) if WORLD > 1 else self.network
        torch.manual_seed(args.seed * 1_000_003 + RANK)  # regions are drawn at random, on each rank others
        learned = [weight for weight in self.network.parameters() if weight.requires_grad]
        images = args.batch_size * WORLD
        rate = args.learning_rate * images / REFERENCE
        self.optimizer = torch.optim.SGD(learned, rate, args.momentum, weight_decay=args.weight_decay)
        self.schedule = LambdaLR(self.optimizer, lambda step: _share(step, steps, args.warm_up, args.decay_at))
        self.scaler = torch.amp.GradScaler(enabled=args.amp and device().type == "cuda")
        self._args = args

    def step(self, batch: Batch) -> dict[str, float]:
        """The parts of the loss. With `accumulate`, a batch is computed in parts, and gradients are exchanged once."""
        self.model.train()
        parts = _split(batch, self._args.accumulate)
        losses: dict[str, float] = {}
        for number, (images, targets) in enumerate(parts):
            last = number == len(parts) - 1
            quiet = nullcontext() if last or WORLD == 1 else self.model.no_sync()  # type: ignore[operator]
            with quiet:
                found = self._loss(images, targets)
                share = len(images) / len(batch[0])
                self.scaler.scale(torch.stack(list(found.values())).sum() * share).backward()
            for name, value in found.items():
                losses[name] = losses.get(name, 0.0) + value.item() * share
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.network.parameters(), self._args.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        return losses | {"loss": sum(losses.values())}

    def _loss(self, images: list[Tensor], targets: list[Target]) -> dict[str, Tensor]:
        place = device()
        moved = [{name: value.to(place) for name, value in target.items()} for target in targets]
        dtype = torch.float16 if place.type == "cuda" else torch.bfloat16
        with torch.autocast(place.type, dtype, enabled=self._args.amp):
            found: dict[str, Tensor] = self.model([image.to(place) for image in images], moved)
        return found


def _split(batch: Batch, parts: int) -> list[Batch]:
    images, targets = batch
    size = -(-len(images) // parts)
    starts = range(0, len(images), size)
    return [(images[start : start + size], targets[start : start + size]) for start in starts]


def _share(step: int, steps: int, warm_up: int, decay_at: list[float]) -> float:
    """Of the learning rate: a linear start, then a tenth after each of the shares of the training."""
    start = min(1.0, (step + 1) / max(1, warm_up))
    return float(start * 0.1 ** sum(step >= share * steps for share in decay_at))


class Pace:
    """How long the first batch took, how many images a second since, and how much of the time waited for images."""

    def __init__(self, images: int) -> None:
        self._images, self._count, self._waited = images, 0, 0.0
        self._made = self._mark = time.perf_counter()
        self.first_batch_s: float | None = None

    def batch_is_here(self) -> None:
        now = time.perf_counter()
        if self.first_batch_s is None:
            self.first_batch_s, self._made = now - self._made, now
        else:
            self._waited += now - self._mark

    def step_is_done(self) -> None:
        self._mark = time.perf_counter()
        self._count += self._images

    def metrics(self) -> dict[str, float]:
        took = max(self._mark - self._made, 1e-9)
        first = {} if self.first_batch_s is None else {"first_batch_s": self.first_batch_s}
        return first | {"images_per_s": self._count / took, "waiting_share": self._waited / took}
