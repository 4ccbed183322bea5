"""What cloud VMs can do and others cannot: receive eviction notices, and remove themselves.

The cloud's plug-in implements it: a module that is shipped with the agent (see `pack.py`) and named in its options.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from stoker.model.orders import Notice


class CloudListener(Protocol):
    """A thread that receives the cloud's notices for this VM."""

    def start(self) -> None: ...

    def finish(self) -> None: ...

    def approve(self) -> None:
        """Everything is saved: a restart of the VM need not wait for the end of its notice."""
        ...

    def stay(self) -> None:
        """Everything of an evicted attempt is in the store, but its final report: returns when that may follow."""
        ...


class SelfRemoval(Protocol):
    def carry_out(self) -> None:
        """Removes the VM, and retries until it is gone: nothing else matters, since it is billed."""
        ...


class CloudNode(Protocol):
    """The interface of such a module. It may import only the standard library, `stoker.model` and `stoker.agent`."""

    def listen(
        self, url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None], /
    ) -> CloudListener:
        """Warns of an eviction, and with None when it is withdrawn; adds events to the timeline."""
        ...

    def removal(self, settings: Mapping[str, str], /) -> SelfRemoval:
        """From what the provider wrote into the VM's first file as `release`."""
        ...


def registry_login(module: str, registry: str) -> tuple[str, str] | None:
    """User and password of the VM itself for a registry of its cloud; None: it has none for this one."""
    ask = getattr(load_cloud(module), "registry_login", None)
    found: tuple[str, str] | None = ask(registry) if ask else None
    return found


def load_cloud(module: str) -> CloudNode:
    return cast(CloudNode, importlib.import_module(module))
