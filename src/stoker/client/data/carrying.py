"""Many files between this computer and a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from stoker.stores import Store
from stoker.stores.reader import open_object
from stoker.stores.verified import Verified


class Item(NamedTuple):
    place: str
    key: str
    size_bytes: int
    sha256: str


def send(store: Store, items: Iterable[Item], told: Callable[[int, int], None]) -> None:
    def one(item: Item) -> None:
        with Path(item.place).open("rb") as file:
            store.put(item.key, cast(BinaryIO, Verified(file, item.sha256, item.size_bytes)))
        told(item.size_bytes, 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, items))


def bring(store: Store, items: Iterable[Item], told: Callable[[int, int], None]) -> None:
    def one(item: Item) -> None:
        Path(item.place).parent.mkdir(parents=True, exist_ok=True)
        with open_object(store, item.key) as source, Path(item.place + ".part").open("wb") as file:
            while piece := source.read(1 << 20):
                file.write(piece)
        Path(item.place + ".part").replace(item.place)
        told(item.size_bytes, 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, items))
