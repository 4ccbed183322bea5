"""Visits and stops reach the agent, however many files it holds open."""

from __future__ import annotations

import fcntl
import os

from stoker.agent.checkpoints.folders.files import room_for
from stoker.agent.processes.family import readable


def test_a_file_behind_the_first_thousand_is_noticed() -> None:
    reads, writes = os.pipe()
    with room_for(2000):
        far = fcntl.fcntl(reads, fcntl.F_DUPFD_CLOEXEC, 1500)
        try:
            assert readable([far], 0.1) == []
            os.write(writes, b"said")
            assert readable([far], 0.1) == [far]
        finally:
            for fd in (reads, writes, far):
                os.close(fd)
