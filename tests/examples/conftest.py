"""What tests of examples share: the real command in a home of its own, and a site to download from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from project import environment

collect_ignore = ["scripts", "pace"]  # what users have in their folders, tests and all, is not ours to run


@pytest.fixture
def stoker(tmp_path: Path) -> Iterator[Callable[..., str]]:
    env = environment(STOKER_HOME=str(tmp_path / "home"))
    env.pop("VIRTUAL_ENV", None)
    command = str(Path(sys.executable).with_name("stoker"))

    def run(*args: str, cwd: Path = tmp_path, check: bool = True) -> str:
        done = subprocess.run([command, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0 or not check, f"stoker {' '.join(args)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    yield run
    with suppress(AssertionError):
        run("server", "stop")
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(tmp_path / "home").encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


class Site(BaseHTTPRequestHandler):
    """Serves one file, but closes the connection in the middle of each response as often as requested."""

    content = b""
    cuts = 0
    asked: list[str | None]

    def do_GET(self) -> None:
        given = self.headers.get("Range")
        self.asked.append(given)
        start = int(given.split("=")[1].rstrip("-")) if given else 0
        rest = self.content[start:]
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if len(self.asked) <= type(self).cuts:
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[Any, str]]:
    """What it serves is the handler's `content`; and its address."""
    handler = type("Handler", (Site,), {"asked": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}/set.zip"
    server.shutdown()
    server.server_close()
