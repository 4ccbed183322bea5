"""What runs on a machine that costs money: the agent, and beside it the lease that says how long both may stay."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from stoker.agent.lease import LeaseWatch
from stoker.agent.release import Release

LOOK_EVERY_S = 15.0
LOOKS_PER_LEASE = 8
LAST_WORDS_S = 120.0  # to save and upload, once the lease is over
CHILD_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Read from the file that the machine was given at its start."""

    store: str
    orders: str
    lease_s: float
    release: Release
    arguments: Mapping[str, str] = field(default_factory=dict)  # for the agent
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path) -> Tenancy:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = ("store", "orders", "lease_s", "arguments", "variables")
        return cls(release=Release(**found["release"]), **{name: found[name] for name in names})


def live(tenancy: Tenancy, lease: LeaseWatch, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the agent to its end, and then stays until somebody removes the machine or its lease is over: the server may
    still want to look at it. A machine that is shut down is left to whoever does it."""
    agent = subprocess.Popen(command, env={**environ, **tenancy.variables}, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, _shut_down)
    every_s = min(LOOK_EVERY_S, tenancy.lease_s / LOOKS_PER_LEASE)
    try:
        while lease.look() > 0:
            _wait(agent, min(every_s, max(lease.left_s, 0.0)))
    except ShutDown:
        end(agent)
        return 0
    print("the lease of this machine is over: saving, then removing it", file=sys.stderr, flush=True)  # noqa: T201
    end(agent)
    tenancy.release.carry_out()
    return 0


class ShutDown(Exception):
    """The machine is going down."""


def _shut_down(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signal handlers are
    raise ShutDown


def end(agent: subprocess.Popen[bytes]) -> None:
    """In good order if it can: the agent commits, uploads and reports when it is told to end."""
    if agent.poll() is not None:
        return
    agent.send_signal(signal.SIGTERM)
    try:
        agent.wait(LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def _wait(agent: subprocess.Popen[bytes], seconds: float) -> None:
    """No zombie is left, and the time goes by either way."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        agent.poll()
        time.sleep(min(left_s, CHILD_EVERY_S))
