"""What several rings of tests share: services that are started once, when the first test asks for them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for `services` and `faultproxy`

from services import Azurite, S3Server, run_azurite, run_s3  # found by the line above
from stoker.client.submit.surroundings import BEGINNINGS, NAMES

settings.register_profile("stoker", deadline=None)  # a busy computer is no reason to fail
settings.load_profile("stoker")

# Tests that run in the background, or under `nohup`, are told to ignore these signals. Every process that they start
# inherits what is ignored, and Ctrl-C would reach no command; what has a handler is not inherited.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Runs take numeric variables of the shell along, and say so: what this machine happens to set is not under test.
for name in [name for name in os.environ if name in NAMES or name.startswith(BEGINNINGS)]:
    del os.environ[name]


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with run_azurite() as running:
        yield running


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_s3() as running:
        yield running
