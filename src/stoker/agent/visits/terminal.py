"""Between a script's pseudo-terminal and a user's terminal: keys, Ctrl-C and window size; all output goes to the log,
too."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.launch import RankCommand
from stoker.agent.processes.ranks import spawn, spawn_with
from stoker.agent.shipping.logs import Masking
from stoker.model.node import Inside
from stoker.model.wire import load

AT_ONCE = 1 << 16
MOST_PENDING = 1 << 20  # output that the user's terminal has not accepted, before the script has to wait
ATTACH_S = 120.0  # for a user to connect; a script that reads would wait forever otherwise
FLUSH_S = 5.0  # for the last output, once the script has ended
HEAD = struct.Struct("!cI")  # a letter, and the length of what follows
KEYS, SIZE = b"k", b"s"  # what was typed; rows and columns
SIZES = struct.Struct("!HH")


def relay(master: int, log: int, listener: socket.socket) -> int:
    """Returns when no process can print any more. If the user's terminal disconnects, so does the script's."""
    for fd in (master, listener.fileno()):
        os.set_blocking(fd, False)
    return _Relay(master, log, listener).run()


class _Relay:
    def __init__(self, master: int, log: int, listener: socket.socket) -> None:
        self._master = master
        self._log = log
        self._listener = listener
        self._person: socket.socket | None = None
        self._shown = bytearray()  # not yet written to the user's terminal
        self._typed = bytearray()  # not yet read by the script
        self._frames = bytearray()
        self._return = b""  # a carriage return whose line feed may follow

    def run(self) -> int:
        until = time.monotonic() + ATTACH_S
        while True:
            self._wait()
            if self._person is None:
                self._accept()
                if self._person is None and time.monotonic() > until:
                    break
            elif not self._hear():
                break
            if not self._print():
                self._accept()  # may be a moment late
                self._finish()
                break
            self._type()
            self._show()
        os.write(self._log, self._return)
        return 0  # the kernel sends SIGHUP to the script when the terminal is closed

    def _wait(self) -> None:
        room = self._person is None or len(self._shown) < MOST_PENDING
        reads: list[int | socket.socket] = [self._master] if room else []
        reads.append(self._person or self._listener)
        writes: list[int | socket.socket] = [self._person] if self._person and self._shown else []
        writes += [self._master] if self._typed else []
        select.select(reads, writes, [], 1.0)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            if self._person is None:
                self._person = self._listener.accept()[0]
                self._person.setblocking(False)

    def _hear(self) -> bool:
        """False where the user has disconnected."""
        assert self._person
        try:
            piece = self._person.recv(AT_ONCE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._frames += piece
        while len(self._frames) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._frames)
            if len(self._frames) < HEAD.size + length:
                break
            self._take(kind, bytes(self._frames[HEAD.size : HEAD.size + length]))
            del self._frames[: HEAD.size + length]
        return bool(piece)

    def _take(self, kind: bytes, data: bytes) -> None:
        if kind == KEYS:
            self._typed += data
        elif kind == SIZE and len(data) == SIZES.size:
            rows, columns = SIZES.unpack(data)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _print(self) -> bool:
        """False where the script, and all its children, have ended."""
        if self._person and len(self._shown) >= MOST_PENDING:
            return True
        try:
            piece = os.read(self._master, AT_ONCE)
        except BlockingIOError:
            return True
        except OSError:  # how Linux reports that the other side is closed
            return False
        if not piece:
            return False
        self._shown += piece
        if self._person is None:
            del self._shown[:-MOST_PENDING]
        self._write_down(piece)
        return True

    def _write_down(self, piece: bytes) -> None:
        """As a script without a terminal would have written it: the terminal adds a carriage return to each line."""
        text = self._return + piece
        self._return = b"\r" if text.endswith(b"\r") else b""
        rest = memoryview(text.removesuffix(b"\r").replace(b"\r\n", b"\n"))
        while rest:
            rest = rest[os.write(self._log, rest) :]

    def _type(self) -> None:
        with suppress(BlockingIOError, OSError):
            while self._typed:
                del self._typed[: os.write(self._master, self._typed)]

    def _show(self) -> None:
        with suppress(BlockingIOError, OSError):
            while self._person and self._shown:
                del self._shown[: self._person.send(self._shown)]

    def _finish(self) -> None:
        if self._person:
            self._person.settimeout(FLUSH_S)
            with suppress(OSError):
                self._person.sendall(self._shown)
                self._person.shutdown(socket.SHUT_WR)


# Starting a rank on a pseudo-terminal, with the relay that serves it.


def start_on_terminal(command: RankCommand, log: Path, door: Path, library: Path) -> tuple[int, int]:
    """Returns the pids of the rank and of the process between it, its log, and visitors at `door`. Keeps the current
    directory, which is where the rank starts."""
    assert command.terminal
    master, slave = os.openpty()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    words = (sys.executable, "-I", "-S", str(library), "relay")
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            size = struct.pack("HHHH", command.terminal.rows, command.terminal.columns, 0, 0)
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            _listen(listener, door)
            relay = spawn(words, {}, (master, file, nothing, listener.fileno()))
            # A session leader without a terminal gets the one that it opens.
            opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)
            copies = [(os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2)]
            return spawn_with(command.argv, command.env, [opened, *copies]), relay
        finally:
            for fd in (master, slave, file, nothing):
                os.close(fd)


def _listen(listener: socket.socket, door: Path) -> None:
    """By a short path: socket paths must be short."""
    door.unlink(missing_ok=True)
    here = Path.cwd()
    os.chdir(door.parent)
    try:
        listener.bind(door.name)
        listener.listen(1)
    finally:
        os.chdir(here)


NOBODY = 3  # the exit code where no script has a terminal here, or it has ended


def attach(folder: NodeFolder) -> int:
    """Returns when the script has ended."""
    script = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder.root)  # socket paths must be short
        script.connect(folder.terminal.name)
    except OSError:
        return NOBODY
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    keyboard = sys.stdin.fileno()
    with script, _raw(keyboard), suppress(BrokenPipeError, ConnectionResetError):
        return 0 if _pass_on(script, keyboard, wakes) else NOBODY
    return 0


def _pass_on(script: socket.socket, keyboard: int, wakes: int) -> bool:
    """Whether the script, or its relay, has sent anything."""
    _tell_size(script, keyboard)
    heard, reads = False, [script.fileno(), keyboard, wakes]
    while True:
        ready = select.select(reads, [], [])[0]
        if wakes in ready:
            os.read(wakes, AT_ONCE)
            _tell_size(script, keyboard)
        if keyboard in ready:
            typed = os.read(keyboard, AT_ONCE)
            if not typed:
                reads.remove(keyboard)
            _send(script, KEYS, typed)
        if script.fileno() in ready:
            piece = script.recv(AT_ONCE)
            if not piece:
                return heard
            heard = True
            _show(piece)


def _tell_size(script: socket.socket, terminal: int) -> None:
    with suppress(OSError):
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))[:2]
        if rows and columns:
            _send(script, SIZE, SIZES.pack(rows, columns))


def _send(script: socket.socket, kind: bytes, data: bytes) -> None:
    script.sendall(HEAD.pack(kind, len(data)) + data)


def _show(piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(1, rest) :]


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the script, Ctrl-C too. Restores the terminal afterwards."""
    if not os.isatty(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        tty.setraw(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


# Runs a command, or a shell, in the folder and with the variables of the run on this machine.

NOT_RUN = 125  # clear of the command's own exit codes
_SHELLS = ("/bin/bash", "/bin/sh")
_OWN = ("TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_CONNECTION", "SSH_TTY")  # from the visitor's terminal


def enter(folder: NodeFolder, words: Sequence[str], variables: Mapping[str, str], secrets: Sequence[str] = ()) -> int:
    """Returns only where it failed, or with `secrets`: then the output of the command is held back to its end, with
    these masked."""
    try:
        inside = load(Inside, folder.inside.read_bytes())
        os.chdir(inside.folder)
    except OSError:
        return refuse("there is no run on this machine now")
    env = {**inside.env, **{name: variables[name] for name in _OWN if name in variables}}
    if inside.through:
        on_terminal = sys.stdin.isatty() and not secrets
        words = (*(inside.on_terminal if on_terminal else inside.through), *words)
        env = dict(inside.outside)
    if secrets:
        return _masked(words, env, Masking(secrets))
    words = words or (next(shell for shell in _SHELLS if Path(shell).exists()), "-i")
    try:
        os.execvpe(words[0], list(words), env)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)


def _masked(words: Sequence[str], env: Mapping[str, str], masking: Masking) -> int:
    import subprocess  # here, because only this way in needs it

    try:
        done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)
    for stream, said in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(masking.whole(said))
        stream.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def refuse(why: str, code: int = NOT_RUN) -> int:
    print(f"stoker: {why}", file=sys.stderr)  # noqa: T201  # to the visitor
    return code
