"""What several ranks need: their number, a meeting, and everybody's words in one list."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def together() -> Iterator[None]:
    """One process needs no others; several meet as `torch.distributed` does."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if WORLD == 1:
        yield
        return
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def gather(mine: Any) -> list[Any]:
    """What each rank has, on all ranks."""
    if WORLD == 1:
        return [mine]
    found: list[Any] = [None] * WORLD
    distributed.all_gather_object(found, mine)
    return found
