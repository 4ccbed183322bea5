"""What a machine of a cloud can do that others cannot: hear that it will be evicted, and remove itself.

How is for the cloud's plug-in to say: a module that is shipped with the agent (see `pack.py`) and named in its options.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from stoker.model.node.orders import Notice


class CloudListener(Protocol):
    """A thread that hears what the cloud tells the machine itself."""

    def start(self) -> None: ...

    def finish(self) -> None: ...

    def approve(self) -> None:
        """Everything is safe: a restart of the machine need not wait for the end of its notice."""
        ...


class SelfRemoval(Protocol):
    def carry_out(self) -> None:
        """Removes the machine, and tries until it is gone: nothing else matters, since it costs."""
        ...


class CloudNode(Protocol):
    """What such a module has. It needs nothing but the standard library, `stoker.model` and `stoker.agent`."""

    def listen(
        self, url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None], /
    ) -> CloudListener:
        """Warns of an eviction, and with None where there is none any more; tells what people should know."""
        ...

    def removal(self, settings: Mapping[str, str], /) -> SelfRemoval:
        """From what the provider wrote into the machine's first file as `release`."""
        ...


def load_cloud(module: str) -> CloudNode:
    return cast(CloudNode, importlib.import_module(module))
