"""The first program of a job: opens the agent's settings, starts it, and shows the studio what the script says."""

from __future__ import annotations

import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
EVERY_S = 1.0
TIMEOUT_S = 20.0
LAST_S = 60.0  # for what the script said last
MOST_POINTS = 1000  # of one request of MLflow
_PIECE = 65_536


def main(inputs: str, name: str, unseal: Callable[[str, bytes, str], str]) -> int:
    """The exit code of the agent. `unseal` is that of the stores, which the command of the job has imported."""
    key, tracking, run, token = (sys.stdin.readline().strip() for _ in range(4))
    told = json.loads(unseal(key, Path(inputs, "sealed").read_bytes(), name))
    place = Path(tempfile.mkdtemp(prefix="stoker-", dir=Path.cwd()))
    options = ["--folder", str(place / "node"), "--environments", str(place / "environments"), "--events", EVENTS]
    with os.fdopen(os.memfd_create("variables"), "wb", buffering=0) as handed:
        handed.write(json.dumps(told["variables"]).encode())
        fd = handed.fileno()
        agent = [sys.executable, "-I", "-S", str(Path(inputs, "agent.pyz").resolve()), "run", *told["words"], *options]
        child = subprocess.Popen([*agent, "--variables-fd", str(fd)], pass_fds=(fd,), stdin=subprocess.DEVNULL)
    studio = StudioMirror(place / "node", tracking, run, token)
    mirror = threading.Thread(target=studio.run, args=(child.poll,), daemon=True)
    mirror.start()
    code = child.wait()
    mirror.join(LAST_S)
    return code


class StudioMirror:
    """Copies the first rank's output to the job's own log, and its metrics to the tracking of the workspace: JSON lines
    that it prints, and what it reports. What fails is left out: all of it is in the run's store, too."""

    def __init__(self, folder: Path, tracking: str, run: str, token: str) -> None:
        self._log, self._metrics = folder / "spool" / "0.log", folder / "metrics.jsonl"
        self._tracking, self._run, self._token = tracking, run, token
        self._open: dict[Path, BinaryIO] = {}
        self._rests: dict[Path, bytes] = {}

    def run(self, over: Callable[[], int | None]) -> None:
        """Until the agent has ended, and then once more."""
        while over() is None:
            self.copy()
            time.sleep(EVERY_S)
        self.copy()

    def copy(self) -> None:
        """What is new since the last time. For one thread."""
        points = []
        for path in (self._log, self._metrics):
            with suppress(OSError):
                while piece := self._more(path):
                    if path == self._log:
                        os.write(1, piece)
                    points += [point for line in self._lines(path, piece) for point in _points(line)]
        with suppress(OSError, ValueError, http.client.HTTPException):
            self._send(points)

    def _more(self, path: Path) -> bytes:
        """An open file can be read when the agent has removed it."""
        if path not in self._open:
            self._open[path] = path.open("rb")
        return self._open[path].read(_PIECE)

    def _lines(self, path: Path, piece: bytes) -> list[bytes]:
        """The whole ones, of which a piece may have the end."""
        whole, _, rest = (self._rests.get(path, b"") + piece).rpartition(b"\n")
        self._rests[path] = rest[-_PIECE:]
        return whole.splitlines()

    def _send(self, points: list[dict[str, Any]]) -> None:
        if not points or not self._tracking.startswith(("azureml://", "https://")):
            return
        url = f"{self._tracking.replace('azureml://', 'https://', 1).split('?')[0]}/api/2.0/mlflow/runs/log-batch"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        for first in range(0, len(points), MOST_POINTS):
            body = json.dumps({"run_id": self._run, "metrics": points[first : first + MOST_POINTS]}).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=TIMEOUT_S):
                pass


def _points(line: bytes) -> list[dict[str, Any]]:
    """The numbers of a line, as MLflow takes them: finite ones. None of one that is no JSON object."""
    if not line.startswith(b"{"):
        return []
    with suppress(ValueError, TypeError, OverflowError, RecursionError):
        said = json.loads(line)
        said |= said.pop("values", None) or {}
        step, now = int(said.pop("step", None) or 0), int(time.time() * 1000)
        numbers = {name: one for name, one in said.items() if type(one) in (int, float) and name not in ("at", "rank")}
        return [
            {"key": name, "value": float(one), "timestamp": now, "step": step}
            for name, one in numbers.items()
            if math.isfinite(one)
        ]
    return []
