"""Runs code inside another network namespace, in a separate thread. Linux, root."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from stoker.twin.machines.guest import kernel

T = TypeVar("T")


def inside(network: int, action: Callable[[], T]) -> T:
    """Sockets that the action creates stay in that network after it has returned."""

    def enter_and_act() -> T:
        kernel.enter(network, kernel.NEW_NETWORK)
        return action()

    return _in_thread(enter_and_act)


def new_network() -> int:
    """A descriptor of an empty network, which disappears with its last holder."""

    def make() -> int:
        kernel.unshare(kernel.NEW_NETWORK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def network_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def listening(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen(128)
    return made


def _in_thread(action: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
