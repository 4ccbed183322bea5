"""Which files of a dataset each of several nodes takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.dataset import DataFile


def part_of(files: Sequence[DataFile], node: int, nodes: int) -> list[DataFile]:
    """Every `nodes`-th file by path, from the node's own number on: the same at every attempt, so that a node finds its
    part in its cache again, and with as much of every folder for each."""
    return sorted(files, key=lambda file: file.path)[node::nodes]
