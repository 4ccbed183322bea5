"""`stoker run --interactive`: a real terminal on this side, a script that asks on the other."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

from shell import PATIENCE_S, Shell

SIZE = (31, 97)


class Screen:
    """A person at a terminal in which `stoker` runs."""

    def __init__(self, shell: Shell, *args: str) -> None:
        self.seen, self._looked = b"", 0
        command = [str(Path(sys.executable).with_name("stoker")), *args]
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(shell.folder)
            resize(0, *SIZE)
            os.execve(command[0], command, {**shell.environ, "TERM": "xterm"})

    def expect(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.seen.find(text, self._looked)) < 0:
            assert time.monotonic() < deadline and self._read(), f"{text!r} did not come: {self.seen.decode()}"
        self._looked = found + len(text)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def resize(self, rows: int, columns: int) -> None:
        resize(self._fd, rows, columns)

    def hang_up(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)

    def ended(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, f"it does not end: {self.seen.decode()}"
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._fd)
        return code

    def _read(self) -> bool:
        if not select.select([self._fd], [], [], 1.0)[0]:
            return True
        try:
            piece = os.read(self._fd, 1 << 16)
        except OSError:
            return False
        self.seen += piece
        return bool(piece)


def resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_a_script_asks_and_is_debugged_in_the_terminal_and_all_of_it_is_in_the_log(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import getpass, os, signal, sys
        assert sys.stdin.isatty() and sys.stdout.isatty() and os.tcgetpgrp(0) == os.getpgrp()
        print("size", *os.get_terminal_size(), os.environ["TERM"])
        name = input("name? ")
        secret = getpass.getpass("word? ")
        try:
            input("interrupt me ")
        except KeyboardInterrupt:
            print("interrupted")
        breakpoint()
        grown = []
        signal.signal(signal.SIGWINCH, lambda *_: grown.append(tuple(os.get_terminal_size())))
        print("resize me", flush=True)
        while not grown:
            signal.pause()
        print("now", *grown[-1])
        open("outputs/said", "w").write(f"{name} {secret}")
        """,
    )
    shell.job("python train.py", retries=2)
    screen = Screen(shell, "run", "--interactive")
    screen.expect(b"size 97 31 xterm\r\n")
    screen.expect(b"name? ")
    screen.type(b"Anm\x7fn\r")
    screen.expect(b"word? ")
    screen.type(b"hushed\r")
    screen.expect(b"interrupt me ")
    screen.type(b"\x03")
    screen.expect(b"interrupted")
    screen.expect(b"(Pdb) ")
    screen.type(b"p name * 2\r")
    screen.expect(b"'AnnAnn'")
    screen.expect(b"(Pdb) ")
    screen.type(b"c\r")
    screen.expect(b"resize me")
    screen.resize(40, 120)
    screen.expect(b"now 120 40")
    assert screen.ended() == 0
    assert b"job-1 succeeded" in screen.seen
    assert (shell.folder / "outputs/job-1/said").read_text() == "Ann hushed"
    log = shell.raw("logs", "--raw", "job-1")
    assert b"size 97 31 xterm\n" in log and b"(Pdb) p name * 2\n'AnnAnn'\n" in log and log.endswith(b"now 120 40\n")
    assert b"\r\n" not in log and b"hushed" not in log


def test_ctrl_c_ends_the_script_as_it_would_without_stoker_and_nothing_is_retried(shell: Shell) -> None:
    shell.write("train.py", "import time\nprint('going', flush=True)\ntime.sleep(60)\n")
    shell.job("python train.py", retries=2)
    screen = Screen(shell, "run", "--interactive")
    screen.expect(b"going")
    screen.type(b"\x03")
    assert screen.ended() == 128 + signal.SIGINT
    assert b"KeyboardInterrupt" in screen.seen and b"SIGINT" in screen.seen
    assert len(shell.facts("job-1")["attempts"]) == 1


def test_a_script_that_ends_at_once_is_shown_whole_and_its_exit_code_is_passed_on(shell: Shell) -> None:
    shell.write("train.py", "import sys\nfor line in range(2000): print('line', line)\nsys.exit(7)\n")
    shell.job("python train.py")
    screen = Screen(shell, "run", "--interactive")
    assert screen.ended() == 7
    assert b"line 0" in screen.seen and b"line 1999" in screen.seen
    log = shell.stoker("logs", "--raw", "job-1").stdout
    assert log == "".join(f"line {number}\n" for number in range(2000))


def test_a_terminal_that_is_closed_ends_the_script(shell: Shell) -> None:
    shell.write("train.py", "input('answer? ')\n")
    shell.job("python train.py")
    screen = Screen(shell, "run", "--interactive")
    screen.expect(b"answer? ")
    screen.hang_up()
    facts = shell.ended("job-1")
    assert facts["state"] == "failed" and "SIGHUP" in facts["reason"]


def test_ctrl_c_before_the_script_has_started_cancels_the_run(shell: Shell) -> None:
    shell.environ["STOKER_SLOTS"] = "1"
    shell.job("sleep 60")
    shell.stoker("run", "--detach")
    screen = Screen(shell, "run", "--interactive")
    screen.expect(b"waiting: ")
    screen.type(b"\x03")
    assert screen.ended() == 130
    assert shell.ended("job-2")["state"] == "cancelled"
    shell.stoker("cancel", "job-1")


def test_without_a_terminal_a_script_that_asks_ends_at_once_and_the_hint_says_how_to_give_it_one(shell: Shell) -> None:
    for text in ("input('name? ')\n", "breakpoint()\nprint(1)\n"):
        shell.write("train.py", text)
        shell.job("python train.py")
        failed = shell.stoker("run", code=1)
        assert "stoker run --interactive" in failed.stderr
    shell.write("train.py", "raise ValueError('EOFError: EOF when reading a line of the corpus')\n")
    assert "--interactive" not in shell.stoker("run", code=1).stderr


def test_where_no_terminal_can_be_given_it_is_refused_with_what_to_do_instead(shell: Shell) -> None:
    shell.job("python -c 1")
    off = shell.stoker("run", "--interactive", code=2)
    assert "terminal" in off.stderr and "< answers.txt" in off.stderr
    for more, said in (
        (("--detach",), b"--detach"),
        (("--json",), b"--json"),
        (("--set", "processes=2"), b"--set processes=1"),
        (("--on", "azure"), b"stoker exec RUN"),
    ):
        screen = Screen(shell, "run", "--interactive", *more)
        assert screen.ended() != 0
        assert said in screen.seen, screen.seen
    assert json.loads(shell.stoker("ps", "--json").stdout.splitlines()[0] or "[]") in ([], {"runs": []})
