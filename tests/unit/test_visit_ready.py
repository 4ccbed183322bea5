"""A visit reads what its command prints, however many files the agent holds open."""

from __future__ import annotations

import fcntl
import os

from stoker.agent.openlimit import room_for
from stoker.agent.visit import _ready


def test_a_file_behind_the_first_thousand_is_heard_of() -> None:
    reads, writes = os.pipe()
    with room_for(2000):
        far = fcntl.fcntl(reads, fcntl.F_DUPFD_CLOEXEC, 1500)
        try:
            assert _ready([far]) == []
            os.write(writes, b"said")
            assert _ready([far]) == [far]
        finally:
            for fd in (reads, writes, far):
                os.close(fd)
