"""One step of learning: the gradients of a whole batch, made from pieces that fit the processor's cache."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from dropout import Dropout
from model import NeuMF, Tables
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Seat:
    """Which of the processes that train together this one is."""

    rank: int = 0
    world: int = 1


def learn(
    model: NeuMF, users: Tensor, films: Tensor, piece: int, dropout: float, place: list[int], seat: Seat
) -> float:
    """Adds the gradients of the mean loss of all samples to the model's, and returns that loss.

    `piece` is how many users are done at once. Pieces are dealt to the processes; since `place` (seed, epoch, batch)
    and the number of a piece decide its dropout, the sum is the same however many there are, but for rounding.
    """
    users, films = users.long(), films.long()  # once, and not at each use as an index
    tables = model.tables()
    held = Tables(*(table.detach() for table in tables))
    sums = Tables(*(torch.zeros_like(table) for table in held))
    total = torch.zeros((), device=users.device)
    for number in range(seat.rank, -(-len(users) // piece), seat.world):
        some_users, some_films = (one[number * piece : (number + 1) * piece] for one in (users, films))
        rows = Tables(*(row.requires_grad_() for row in held.rows(some_users, some_films)))
        loss = _loss(model, rows, dropout, [*place, number]) / films.numel()
        loss.backward()
        total += loss.detach()
        for sum_, row, index in zip(sums, rows, (some_users, some_users, some_films, some_films), strict=True):
            assert row.grad is not None
            sum_.index_add_(0, index.flatten(), row.grad.flatten(0, -2))
    torch.autograd.backward(tables, sums)
    if seat.world > 1:
        _add_up([one.grad for one in model.parameters() if one.grad is not None] + [total])
    return total.item()


def _loss(model: NeuMF, rows: Tables, dropout: float, place: list[int]) -> Tensor:
    """The first film of each row is liked, the others are not."""
    on_gpu = rows.film_first.is_cuda
    with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu and torch.cuda.is_bf16_supported()):
        if on_gpu:  # which draws fast by itself, from a generator that is part of the checkpoint
            logits = model.score(rows, lambda x: functional.dropout(torch.relu(x), dropout))
        else:
            drop = Dropout(dropout, place)
            logits = model.score(rows, drop, drop.scale)
    labels = torch.zeros_like(logits, dtype=torch.float32)
    labels[:, 0] = 1
    return functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")


def _add_up(tensors: list[Tensor]) -> None:
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
