"""Runs a job's part on a node, as Azure ML's own runtime does: files come, processes run, logs and outputs go.

It runs by itself on the node's Python, so it imports nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote
from urllib.request import ProxyHandler, Request, build_opener

_VERSION = "2021-12-02"
_LOOK_S = 0.2
_GRACE_S = 8.0  # from SIGTERM to SIGKILL
_TRIES = 5
_OPEN = build_opener(ProxyHandler({})).open
_INPUT = re.compile(r"\$\{\{\s*(inputs|outputs)\.([A-Za-z0-9_]+)\s*\}\}")


def _asked(method: str, place: dict[str, str], name: str, body: bytes | None = None, query: str = "") -> bytes:
    """One request of the Blob service, repeated while it does not answer."""
    address, _, signature = place["container"].partition("?")
    url = f"{address}{'/' + quote(name) if name else ''}?{query}{signature}"
    headers = {"x-ms-version": _VERSION, **({"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {})}
    for left in reversed(range(_TRIES)):
        try:
            with _OPEN(Request(url, body, headers, method=method), timeout=60) as answer:
                return bytes(answer.read())
        except URLError:
            if not left:
                raise
            time.sleep(0.5)
    raise AssertionError


def _names(place: dict[str, str]) -> Iterator[str]:
    marker = ""
    while True:
        query = f"restype=container&comp=list&prefix={quote(place['prefix'])}&marker={quote(marker)}&"
        page = Xml.fromstring(_asked("GET", place, "", None, query))
        yield from (unquote(str(one.text)) for one in page.iter("Name"))
        marker = page.findtext("NextMarker") or ""
        if not marker:
            return


def download(place: dict[str, Any], folder: Path) -> Path:
    """Everything below the prefix, or the one blob that it names. Where it is afterwards."""
    prefix = str(place["prefix"])
    for name in _names(place):
        if name != prefix and prefix and not name.startswith(f"{prefix}/"):
            continue
        inside = Path(name).name if name == prefix else name.removeprefix(prefix).strip("/")
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_asked("GET", place, name))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / Path(prefix).name if place.get("file") else folder


def upload(folder: Path, place: dict[str, str], below: str = "") -> None:
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        name = "/".join(filter(None, (place["prefix"], below, file.relative_to(folder).as_posix())))
        _asked("PUT", place, name, file.read_bytes())


class JobPart:
    """The processes of a job on this node."""

    def __init__(self, place: Path, attempt: str) -> None:
        self._order: dict[str, Any] = json.loads((place / f"order-{attempt}.json").read_text(encoding="utf-8"))
        self._stop = place / f"stop-{attempt}"
        self._place = place / f"try-{attempt}"
        self._work = self._place / "wd"
        self._logs = self._place / "user_logs"
        self._sent: dict[str, int] = {}
        self._over = threading.Event()

    def run(self) -> int:
        """The exit code: that of the first process that failed."""
        for folder in (self._work, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        sending = threading.Thread(target=self._keep_sending)
        sending.start()
        try:
            return self._worked()
        except Exception as problem:
            with (self._logs / self._log_name(0)).open("a") as said:
                said.write(f"the job could not run: {problem!r}\n")
            return 1
        finally:
            self._finish()
            self._over.set()
            sending.join()
            self._send_logs()

    def _worked(self) -> int:
        if self._order["code"]:
            download(self._order["code"], self._work)
        values = {f"inputs.{name}": self._value(name, one) for name, one in self._order["inputs"].items()}
        for name in self._order["outputs"]:
            folder = self._place / "outputs" / name
            folder.mkdir(parents=True, exist_ok=True)
            values[f"outputs.{name}"] = str(folder)
        (self._work / "outputs").mkdir(exist_ok=True)
        (self._work / "logs").mkdir(exist_ok=True)
        command = _INPUT.sub(lambda found: values[f"{found[1]}.{found[2]}"], self._order["command"])
        return self._awaited([self._begun(command, number) for number in range(len(self._order["variables"]))])

    def _value(self, name: str, one: dict[str, Any]) -> str:
        if "value" in one:
            return str(one["value"])
        return str(download(one, self._place / "inputs" / name))

    def _log_name(self, number: int) -> str:
        return f"std_log_process_{self._order['first'] + number}.txt" if self._order["distributed"] else "std_log.txt"

    def _begun(self, command: str, number: int) -> subprocess.Popen[bytes]:
        python = self._place / "bin" / "python"
        if not python.exists():  # an image of Azure ML has a `python`
            python.parent.mkdir(parents=True, exist_ok=True)
            python.symlink_to(shutil.which("python3") or sys.executable)
        given = {"PYTHONUNBUFFERED": "1", **self._order["variables"][number]}
        variables = self._place / f"variables-{number}"
        variables.touch(mode=0o600)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
        variables.write_text("\n".join([*lines, f'export PATH="$PATH:{python.parent}"\n']))
        with (self._logs / self._log_name(number)).open("ab") as said:
            return subprocess.Popen(
                ["/bin/sh", "-c", f'. "{variables}" && exec /bin/sh -c "$1"', "sh", command],
                cwd=self._work,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def _awaited(self, processes: list[subprocess.Popen[bytes]]) -> int:
        """Until all have ended. The first that fails, and a stop, end the others."""
        ending_at = 0.0
        while any(one.poll() is None for one in processes):
            failed = any(one.returncode for one in processes if one.returncode is not None)
            if (failed or self._stop.exists()) and not ending_at:
                _signalled(processes, signal.SIGTERM)
                ending_at = time.monotonic() + _GRACE_S
            if ending_at and time.monotonic() > ending_at:
                _signalled(processes, signal.SIGKILL)
            time.sleep(_LOOK_S / 4)
        _signalled(processes, signal.SIGKILL)  # what they left running
        return next((abs(one.returncode) for one in processes if one.returncode), 0)

    def _keep_sending(self) -> None:
        while not self._over.wait(1.0):
            with suppress(OSError):
                self._send_logs()

    def _send_logs(self) -> None:
        for file in self._logs.iterdir():
            size = file.stat().st_size
            if self._sent.get(file.name) != size:
                place = self._order["logs"]
                _asked("PUT", place, f"{place['prefix']}/user_logs/{file.name}", file.read_bytes()[:size])
                self._sent[file.name] = size

    def _finish(self) -> None:
        for name, place in self._order["outputs"].items():
            upload(self._place / "outputs" / name, place)
        for name in ("outputs", "logs"):
            if (self._work / name).is_dir():
                upload(self._work / name, self._order["logs"], name)


def _signalled(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for one in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(one.pid, number)


def main(place: Path, attempt: str) -> int:
    """A second call waits for the first, and ends as that has."""
    with (place / f"lock-{attempt}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = place / f"exit-{attempt}"
        if not ended.exists():
            ended.write_text(str(JobPart(place, attempt).run()))
        return int(ended.read_text())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
