"""The port at which ranks meet."""

from __future__ import annotations

import zlib

from stoker.model.orders import Orders


def port(orders: Orders, processes: int) -> int:
    """A free one on a single node. Several nodes cannot ask each other: theirs follows from the attempt."""
    if orders.nodes == 1 and processes > 1:
        import socket  # here, because it is slow to import and most runs have one rank

        with socket.socket() as probe:
            probe.bind((orders.master_address, 0))
            free: int = probe.getsockname()[1]
            return free
    return 20000 + zlib.crc32(f"{orders.run_id}/{orders.attempt}".encode()) % 12000
