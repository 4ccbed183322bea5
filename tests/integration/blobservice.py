"""An Azurite that can be stopped and restarted on its port with its data, and that records every request."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from services import ACCOUNT, INSTALLED, Azurite, free_port

PROGRAM = INSTALLED / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


class BlobService:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "debug.log"
        self.environ: dict[str, str] | None = None  # None: that of this process
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def azurite(self) -> Azurite:
        return Azurite(f"http://127.0.0.1:{self.port}/{ACCOUNT}", self.folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def rotate(self, key: str) -> None:
        """From now on it accepts another account key, and no token of the old one."""
        self.stop()
        self.environ = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
        self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It accepts requests, and answers none of them."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def start(self) -> None:
        node = shutil.which("node")
        assert node, "Azurite needs node: apt-get install nodejs"
        flags = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--debug", str(self.log)]
        place = ["--location", str(self.folder / "blobs"), "--blobPort", str(self.port)]
        words = self.folder / "out.txt"
        with words.open("wb") as out:
            self._process = subprocess.Popen(
                [node, str(PROGRAM), *flags, *place], stdout=out, stderr=out, env=self.environ
            )
        deadline = time.monotonic() + 60
        while b"listens on" not in words.read_bytes():
            assert self._process.poll() is None and time.monotonic() < deadline, words.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Like a service under maintenance: its data is kept."""
        if self._process:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def requests(self) -> Counter[str]:
        """By method, since it was first started."""
        return Counter(re.findall(r"RequestMethod=(\w+)", self.log.read_text(errors="replace")))
