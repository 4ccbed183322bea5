"""Where the files of an input are, for a node: keys of a store, some of them perhaps files of this computer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stoker.agent.data.downloading import WantedContent
from stoker.errors import Corrupt, Missing
from stoker.model.dataset import DataFile, Manifest
from stoker.model.node.orders import DataOrder, Orders
from stoker.stores import Store
from stoker.stores.access import Route


class DataSource:
    """`files` are those that this node needs."""

    def __init__(self, store: Store, order: DataOrder, files: Sequence[DataFile]) -> None:
        self._store = store
        self.order = order
        self.files = files
        self._dataset = order.dataset.partition("@")[0]

    @classmethod
    def open(cls, store: Store, order: DataOrder, orders: Orders) -> DataSource:
        """Raises Missing where the file list does not exist, DatasetRefused where it is not the pinned one."""
        try:
            manifest = Manifest.from_bytes(store.get(order.manifest), order.id)
        except Missing as error:
            hint = "list datasets with `stoker data ls`"
            raise Missing(
                f"the file list of {order.label} is missing in the store: {error.message}", hint=hint
            ) from None
        files = part_of(manifest.files, orders.node, orders.nodes) if order.shard else list(manifest.files)
        return cls(store, order, files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def key(self, file: DataFile) -> str:
        return self.order.root + file.stored_in(self._dataset)

    def get(self, key: str, start: int, size: int) -> bytes:
        return self._store.get(key, start, size)

    def route(self, file: DataFile) -> Route | None:
        """How a mount would reach it; None without a token to mount with."""
        return self._store.route(self.key(file))

    def local(self, file: DataFile) -> str:
        """Its path, where the store is a folder of this computer; else empty."""
        return self._store.path(self.key(file))

    def wanted(self, file: DataFile) -> WantedContent:
        """Without a hash, the store, the key, the size and the etag identify the content."""
        if file.sha256:
            return WantedContent(file.sha256, file.size_bytes, self.key(file), file.path, file.sha256)
        which = "\0".join((self.order.store, file.key, str(file.size_bytes), file.etag))
        return WantedContent(hashlib.sha256(which.encode()).hexdigest(), file.size_bytes, self.key(file), file.path)

    def check_in_place(self) -> None:
        """Files that were registered in place may have changed since: size and etag tell. Raises Corrupt."""
        pinned = {self.key(file): file for file in self.files if file.key}
        if not pinned:
            return
        seen = {one.key: one for one in self._store.list(_common_folder(list(pinned))) if one.key in pinned}
        for key, file in pinned.items():
            one = seen.get(key)
            gone = one is None or one.size_bytes != file.size_bytes
            if one is None or gone or (file.etag and one.etag != file.etag):
                what = "was removed from the store" if one is None else "was changed in the store"
                raise Corrupt(
                    f"`{file.path}` {what} after {self.order.label} was registered",
                    hint="register the current files: `stoker data add`",
                )


def _common_folder(keys: list[str]) -> str:
    first, last = min(keys).split("/")[:-1], max(keys).split("/")[:-1]
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return "/".join(first[:same])


# Which files of a dataset each of several nodes uses. Pure.


def part_of(files: Sequence[DataFile], node: int, nodes: int) -> list[DataFile]:
    """Every `nodes`-th file by path, starting at the node's own number: the same at every attempt, so that a node finds
    its part in its cache again, and evenly distributed over folders."""
    return sorted(files, key=lambda file: file.path)[node::nodes]
