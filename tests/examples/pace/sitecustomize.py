"""Loaded by the Python of a script that a test runs: each unit of simulated work takes longer until the test has seen
enough, so that a script does not end before a test on a busy machine has evicted it, and none is waited for in vain."""

import os
import threading
import time
from pathlib import Path
from typing import SupportsIndex

SLOWER = 3.0
LOOK_S = 0.05
ENOUGH = Path(__file__).with_name("enough")  # made by the test

_sleep = time.sleep


def _paced(seconds: float | SupportsIndex, /) -> None:
    if threading.current_thread() is not threading.main_thread():
        _sleep(seconds)
        return
    until = time.monotonic() + SLOWER * float(seconds)
    while (left := until - time.monotonic()) > 0 and not ENOUGH.exists():
        _sleep(min(LOOK_S, left))


if "STOKER_CHECKPOINTS" in os.environ:  # not in Stoker's own programs
    time.sleep = _paced
