"""Untrusted text on the user's terminal: nothing in the text of a script, a job file or a report takes effect."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from shell import PATIENCE_S, Shell

# Clipboard, window title, a question that the terminal answers by typing, clearing, an 8-bit sequence, a line drawn
# over another, a text that reads backwards.
EVIL = "\rover\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[6n\x1b[2J\x9b31m\u202eright\u2066\x85"
ACTS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|K)")


def on_terminal(shell: Shell, *args: str) -> str:
    """All that a command writes to a terminal that has both of its streams."""
    end, inside = pty.openpty()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("stoker")), *args],
        cwd=shell.folder,
        env={**shell.environ, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    text = b""
    with suppress(OSError):  # the other side is closed
        while select.select([end], [], [], PATIENCE_S)[0] and (piece := os.read(end, 65536)):
            text += piece
    process.wait(PATIENCE_S)
    os.close(end)
    return text.decode(errors="replace")


def check(text: str) -> None:
    """Lines end, tabs stay, Stoker's own colours stay, and nothing else takes effect."""
    left = OWN.sub("", text.replace("\r\n", "\n"))
    assert "\x1b" not in left, repr(left)
    assert not ACTS.search(left), repr(left)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The end of a run, where its message and its hint contain text of the script."""
    root = tmp_path_factory.mktemp("hostile")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    shell.write(
        "train.py",
        f"""
        import stoker
        stoker.log(step=1, **{{"loss" + {EVIL!r}: 1.0, "accuracy": 0.5}})
        print("epoch", flush=True)
        print({f"/bin/sh: 1: {EVIL}: not found"!r})
        raise SystemExit(127)
    """,
    )
    shell.job("python train.py")
    shell.stoker("run", "--name", "evil", code=127)
    yield shell
    shell.stoker("server", "stop")


@pytest.mark.parametrize(
    "words",
    [
        ("show", "evil"),
        ("show", "evil", "--plot"),
        ("explain", "evil"),
        ("ps",),
        ("logs", "evil"),
        ("logs", "evil", "--raw"),
        ("rerun", "evil"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_scripts_last_line_acts_nowhere_on_a_terminal(failed: Shell, words: tuple[str, ...]) -> None:
    seen = on_terminal(failed, *words)
    assert ("accuracy" if words[0] == "ps" else "over") in seen, "the words themselves are shown"
    check(seen.replace("\rover", "over") if "logs" in words or "rerun" in words else seen)


def test_a_scripts_last_line_acts_nowhere_in_a_file_that_is_shown_later(failed: Shell) -> None:
    for words in (("show", "evil"), ("explain", "evil"), ("ps",)):
        told = failed.stoker(*words)
        check(told.stdout + told.stderr)
    ended = failed.stoker("rerun", "evil", code=127)
    check(ended.stderr)


def test_logs_keep_every_byte_for_a_pipe(failed: Shell) -> None:
    assert failed.raw("logs", "evil", "--raw") == f"epoch\n/bin/sh: 1: {EVIL}: not found\n".encode()


def test_json_is_json_and_acts_nowhere(failed: Shell) -> None:
    told = failed.stoker("show", "evil", "--json").stdout
    check(told)
    assert EVIL.strip("\r") in json.loads(told)["run"]["reason"]


def test_unknown_keys_and_names_of_a_job_file_act_nowhere(failed: Shell) -> None:
    shell = failed
    shell.write(
        "stoker.yaml", json.dumps({"run": "true", "name": f"job{EVIL}", f"key{EVIL}": 1, "env": {f"X{EVIL}": EVIL}})
    )
    told = shell.stoker("run", code=2)
    assert "key" in told.stderr
    check(told.stderr)
    check(on_terminal(shell, "run"))
    check(on_terminal(shell, "show", f"no{EVIL.replace(chr(0), '')}"))
