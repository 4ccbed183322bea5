"""Runs the commands of every console block marked `<!-- recorded -->`, and puts what they print below them.

Each page is a session of its own in a copy of `examples/first_run`, with a fresh home and a terminal 100 columns wide.
A block that would only change in times, sizes, hashes and the like is left as it is: recording twice changes nothing.

    <!-- recorded -->                keeps all of the output
    <!-- recorded head=3 tail=2 -->  keeps the first and last lines of each command's output, with `…` between
    <!-- recorded scene -->          made in this repository instead of the copy, and only by this program: a test would
                                     take too long to compare it
    <!-- before: COMMAND -->         in the line before the marker: the command is run first, and not shown

`--check` writes nothing, and fails and shows what has changed; `--all` writes every block as it comes out now.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "first_run"
BIN = Path(sys.executable).parent
COLUMNS, LINES = 100, 40
PATIENCE_S = 300

_BLOCK = re.compile(
    r"(?P<before>(?:<!-- before: [^\n]* -->\n)*)"
    r"<!-- recorded(?P<options>[^>]*) -->\n"
    r"```console\n(?P<body>.*?)```\n",
    re.S,
)


def main(arguments: Sequence[str]) -> int:
    checking, everything = "--check" in arguments, "--all" in arguments
    named = [Path(one).absolute() for one in arguments if not one.startswith("-")]
    stale = 0
    for page in named or pages():
        text = page.read_text(encoding="utf-8")
        fresh = recorded(text, keep=not everything, scenes=True)
        if fresh != text:
            stale += 1
            sys.stderr.write(f"{page.relative_to(ROOT)} {'is out of date' if checking else 'changed'}\n")
            if checking:
                sys.stderr.writelines(difflib.unified_diff(text.splitlines(True), fresh.splitlines(True), n=1))
            else:
                page.write_text(fresh, encoding="utf-8")
    return 1 if checking and stale else 0


def pages() -> list[Path]:
    """Every page with a recording in it."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if _BLOCK.search(page.read_text(encoding="utf-8"))]


def recorded(text: str, *, keep: bool = True, scenes: bool = False) -> str:
    """The page with its recordings made anew. With `keep`, those that say the same in essence stay to the letter;
    without `scenes` those stay in any case."""
    with session() as shell:
        return _BLOCK.sub(lambda found: _again(found, shell, keep, scenes), text)


def _again(found: re.Match[str], shell: Session, keep: bool, scenes: bool) -> str:
    scene = "scene" in found["options"].split()
    if scene and not scenes:
        return found[0]
    for command in re.findall(r"<!-- before: (.*) -->", found["before"]):
        shell.run(command)
    options = {name: int(value) for name, value in re.findall(r"(head|tail)=(\d+)", found["options"])}
    commands = re.findall(r"^\$ (.*)$", found["body"], re.M)
    if scene:
        usual, shell.folder, commands = shell.folder, ROOT, commands[:1]  # it types the others by itself
    body = "\n".join(f"$ {command}\n{shortened(shell.run(command), **options)}" for command in commands)
    if scene:
        shell.folder = usual
    if keep and essence(body) == essence(found["body"]):
        return found[0]
    return f"{found['before']}<!-- recorded{found['options']} -->\n```console\n{body}```\n"


def shortened(text: str, head: int = 0, tail: int = 0) -> str:
    lines = text.splitlines(keepends=True)
    if not (head or tail) or len(lines) <= head + tail + 1:
        return text
    return "".join([*lines[:head], "…\n", *(lines[-tail:] if tail else [])])


_NUMBER = re.compile(r"(?<![\w-])(?<!exit code )\d[\d.,]*(?:e-?\d+)?")
_FLEETING = re.compile(
    r"(submitting|starting|waiting|saving|bringing|sending)\b.*"
)  # said only where it takes more than a moment
_DRAWN = re.compile(r".*[\u2800-\u28ff│┤└].*")
_HERE = re.compile(  # of this computer
    r"ok +(stoker|runs use|home|disk|server|database|uv|git|clock|open files)\b.*|system kernel .*"
)


def essence(text: str) -> str:
    """What has to stay the same from one recording to the next."""
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b", "<hash>", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "<time>", text)
    text = re.sub(r"\b\d+(?:\.\d+)? (?:s|B|kB|MB|GB)\b|\b\d+m \d\ds\b|\b\d+[smhd]\b", "<amount>", text)
    text = re.sub(r" +", " ", _NUMBER.sub("<n>", text))
    lines = [line.strip() for line in text.splitlines()]
    passing = (_FLEETING, _DRAWN, _HERE)
    kept = [line for line in lines if line not in ("", "…") and not any(one.match(line) for one in passing)]
    return "\n".join(line for at, line in enumerate(kept) if line not in kept[max(0, at - 2) : at])


@dataclass
class Session:
    """A person at a terminal of their own."""

    root: Path
    folder: Path
    code: int = 0  # the exit code of the last command

    def run(self, command: str) -> str:
        """What a terminal would show. A `cd` holds for the commands after it, and `$?` is the code of the last."""
        note = self.root / "cwd"
        script = f"(exit {self.code})\n{command}\ncode=$?; pwd > {note}; exit $code"
        terminal, ours = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=self.folder,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=ours,
            stderr=ours,
            start_new_session=True,
        )
        os.close(ours)
        try:
            text = _read(terminal, time.monotonic() + PATIENCE_S)
        finally:
            os.close(terminal)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self.code = process.wait()
        self.folder = Path(note.read_text().strip())
        return self._shown(text)

    def _environ(self) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "LC_", "LANG"))}
        return keep | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.root),
            "STOKER_HOME": str(self.root / ".stoker"),
            "USER": "you",
            "TERM": "dumb",
            "SCRIPTS": str(ROOT / "tests" / "examples" / "scripts"),  # after the shape of public ones, to show
        }

    def _shown(self, text: str) -> str:
        """Where things lie on this computer is nobody's business."""
        text = text.replace("\r\n", "\n").replace(str(self.root), "~").replace(str(BIN.parent), "~/venv").expandtabs()
        return text if text.endswith("\n") or not text else text + "\n"


@contextmanager
def session() -> Iterator[Session]:
    """Ends whatever was started in it."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as place:
        root = Path(place).resolve()
        shutil.copytree(EXAMPLE, root / "first_run", ignore=shutil.ignore_patterns("outputs", "__pycache__"))
        shell = Session(root, root / "first_run")
        try:
            yield shell
        finally:
            shell.folder = root
            left = shell.run("stoker ps --state active 2> /dev/null | awk 'NR > 1 {print $1}'").split()
            if left:
                shell.run(f"stoker cancel --yes {' '.join(left)}")
            shell.run("stoker server stop")


def _read(terminal: int, deadline: float) -> str:
    """Everything until the last process that could write has gone."""
    text = b""
    with suppress(OSError):  # Linux tells the end of a pseudo-terminal this way
        while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(terminal, 65536)
            if not piece:
                return text.decode(errors="replace")
            text += piece
        raise TimeoutError(f"still going after {PATIENCE_S} s: {text.decode(errors='replace')}")
    return text.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
