"""The connection to one host: OpenSSH's own client, with the configuration of its user, and the program at its end. Why
a host cannot be used, from what ssh prints, and what to do about it. Pure."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from stoker.errors import LoginFailed, ProviderFailed, ProviderUnavailable

LEAST_PYTHON = "3.10"
NO_PYTHON = "stoker-no-python"  # printed by the first command where no Python is new enough

_PASSING = {
    "connection refused": "refuses connections: its sshd is not running, or listens on another port",
    "timed out": "does not answer",
    "no route to host": "cannot be reached: no route to it",
    "network is unreachable": "cannot be reached: the network is down",
    "could not resolve hostname": "is unknown: its name cannot be resolved",
    "connection reset": "closed the connection",
    "connection closed": "closed the connection",
    "kex_exchange_identification": "closed the connection before the login",
    "broken pipe": "lost the connection",
    "stdio forwarding failed": "cannot be reached through its jump host",
    "no space left on device": "has a full disk",
}


def refusal(host: str, said: str) -> ProviderFailed:
    """`said` is what ssh printed on stderr. What passes by itself is ProviderUnavailable."""
    text = said.lower()
    if NO_PYTHON in text:
        found = said[text.index(NO_PYTHON) + len(NO_PYTHON) :].strip().splitlines()[:1]
        has = f": it has {found[0]}" if found and found[0] else ""
        return ProviderFailed(
            f"host `{host}` has no Python {LEAST_PYTHON} or newer{has}",
            hint=f"install one there, for example `uv python install {LEAST_PYTHON}`; no root is needed",
        )
    if "remote host identification has changed" in text:
        return LoginFailed(
            f"the host key of `{host}` has changed: it was reinstalled, or somebody else answers in its place",
            hint=f"compare the new key with its administrator, then `ssh-keygen -R {_bare(host)}` and `ssh {host}`",
        )
    if "host key verification failed" in text or "host key is known" in text:
        return LoginFailed(
            f"the host key of `{host}` is unknown",
            hint=f"log in once with `ssh {host}`, and compare the key that it shows before you accept it",
        )
    if "permission denied" in text or "too many authentication failures" in text:
        return LoginFailed(
            f"host `{host}` refuses the login: {_last(said)}",
            hint=f"`ssh {host} true` must work without a question: load your key with `ssh-add`",
        )
    for words, why in _PASSING.items():
        if words in text:
            return ProviderUnavailable(f"host `{host}` {why}", hint=f"try it with `ssh {host} true`")
    why = _last(said) or "ssh ended without a word"
    return ProviderUnavailable(f"host `{host}` cannot be used: {why}", hint=f"try it with `ssh {host} true`")


def refused(host: str, code: str, why: str) -> ProviderFailed:
    """What the program on the host has answered."""
    if code == "disk-full":
        return ProviderFailed(f"host `{host}`: {why}", hint="free some space in the home of its account")
    return ProviderFailed(f"host `{host}`: {why}")


def silent(host: str, seconds: float) -> ProviderUnavailable:
    return ProviderUnavailable(f"host `{host}` has not answered for {seconds:.0f} s", hint=f"try `ssh {host} true`")


def _bare(host: str) -> str:
    return host.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Warning:")]
    return lines[-1][:300] if lines else ""


CONNECT_S = 20.0  # to log in, also through jump hosts, until the program there answers
ANSWER_S = 10.0
AGAIN_S = 5.0  # pause after a failure of the host
_SAID_BYTES = 8192
# Never a question, never another host key than the known one: that is ssh's own default together with BatchMode.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ControlMaster": "yes",
    "ControlPersist": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
}
_LEAST = LEAST_PYTHON.replace(".", ", ")
_NEWEST = "python3 python3.14 python3.13 python3.12 python3.11 python3.10 $HOME/.local/bin/python3*"
_MANAGED = "$HOME/.local/share/uv/python/*/bin/python3"
# The account's shell may be any, so `sh` gets one word in single quotes.
_BEGIN = (
    f"exec sh -c 'for p in {_NEWEST} {_MANAGED}; do "
    f'"$p" -c "import sys; sys.exit(sys.version_info < ({_LEAST}))" 2>/dev/null && '
    'exec "$p" -I -S -u -c '
    '"import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"; '
    f"done; echo {NO_PYTHON} $(python3 --version 2>&1) >&2'"
)
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class LinkSite:
    folder: Path  # 0700: the control sockets
    server: str  # the tag under which the host keeps what is this server's
    door: Path  # the local end of the tunnel


class HostLink:
    """Connects when it is asked something, and again after a loss. Called from several threads."""

    def __init__(self, host: str, site: LinkSite) -> None:
        self.host = host
        self.facts: dict[str, Any] = {}  # what the host said of itself
        self.untunnelled = ""  # why the tunnel cannot be used; empty: it can
        self._site = site
        self._lock = threading.Lock()
        self._talk: Conversation | None = None
        self._trouble: ProviderFailed | None = None
        self._trouble_at = 0.0
        self._connecting = threading.Event()
        self._connecting.set()

    def ask(self, op: str, within_s: float = ANSWER_S, **given: Any) -> dict[str, Any]:
        """Raises ProviderUnavailable where the host does not answer, and ProviderFailed where a person must act."""
        talk = self._talking(within_s)
        return talk.ask(op, {"server": self._site.server, **given}, within_s)

    @property
    def trouble(self) -> ProviderFailed | None:
        """Why the last connection failed, for as long as it is not tried again."""
        return self._trouble if time.monotonic() - self._trouble_at < AGAIN_S else None

    @property
    def control(self) -> Path | None:
        """The socket through which others use the same connection; None while there is none."""
        return self._talk.control if self._talk and self._talk.alive else None

    def close(self) -> None:
        with self._lock:
            if self._talk:
                self._talk.close()
            self._talk = None

    def _talking(self, within_s: float) -> Conversation:
        """One thread connects. The others wait for it, and nobody for longer than it was given."""
        with self._lock:
            if self._talk and self._talk.alive:
                return self._talk
            if self._connecting.is_set():
                if self.trouble:
                    raise self.trouble
                self._connecting.clear()
                threading.Thread(target=self._connect, name=f"ssh {self.host}", daemon=True).start()
        if not self._connecting.wait(within_s):
            raise silent(self.host, within_s)
        with self._lock:
            if self._talk and self._talk.alive:
                return self._talk
            raise self._trouble or silent(self.host, within_s)

    def _connect(self) -> None:
        talk: Conversation | None = None
        try:
            talk = Conversation(self.host, self._site.folder)
            self.facts = talk.ask("hello", {"server": self._site.server}, CONNECT_S)
            self.untunnelled = self._tunnel(talk)
            with self._lock:
                self._talk, self._trouble = talk, None
        except ProviderFailed as error:
            self._failed(error, talk)
        except Exception as error:  # such as no ssh on this computer
            self._failed(ProviderFailed(f"could not run ssh: {error}", hint="install OpenSSH's client"), talk)
        finally:
            self._connecting.set()

    def _failed(self, error: ProviderFailed, talk: Conversation | None) -> None:
        if talk:
            talk.close()
        with self._lock:
            self._trouble, self._trouble_at = error, time.monotonic()

    def _tunnel(self, talk: Conversation) -> str:
        """Lets nodes of this host reach this computer's folders, through the same connection."""
        place = talk.ask("door", {"server": self._site.server}, ANSWER_S)["place"]
        words = ["ssh", "-S", str(talk.control), "-O", "forward", "-R", f"{place}:{self._site.door}", "--", self.host]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            return "it does not answer"
        if done.returncode:
            return done.stderr.strip()[-300:] or "its sshd refuses it"
        talk.ask("opened", {"server": self._site.server}, ANSWER_S)
        return ""


class Conversation:
    """One process of ssh. It ends with this one: the program at its end hears that its input is closed."""

    def __init__(self, host: str, folder: Path) -> None:
        self.host = host
        self.control = folder / f"c{os.getpid()}-{next(_numbers)}"
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        self._news = threading.Condition()
        self._said = b""
        self._ended = False
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        self._process = subprocess.Popen(
            ["ssh", "-T", "-a", "-x", *options, "-S", str(self.control), "--", host, _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        source = files("stoker.providers.ssh").joinpath("onhost.py").read_bytes()
        self._send(f"{len(source)}\n".encode() + source)
        for work in (self._listen, self._overhear):
            threading.Thread(target=work, name=f"ssh {host}", daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._ended and self._process.poll() is None

    def ask(self, op: str, given: dict[str, Any], within_s: float) -> dict[str, Any]:
        """A host that does not answer in time has lost the connection: the next question begins a new one."""
        number = next(_numbers)
        answers: list[dict[str, Any]] = []
        with self._news:
            self._waiting[number] = answers
        try:
            self._send(json.dumps({"id": number, "op": op, "given": given}).encode() + b"\n")
            with self._news:
                self._news.wait_for(lambda: bool(answers) or self._ended, within_s)
        finally:
            self._waiting.pop(number, None)
        if answers:
            if "code" in answers[0]:
                raise HostAnswer(self.host, str(answers[0]["code"]), str(answers[0]["why"]))
            return dict(answers[0]["found"])
        if self._ended:
            raise self._why()
        self.close()
        raise silent(self.host, within_s)

    def close(self) -> None:
        self._ended = True
        for action in (self._process.stdin.close if self._process.stdin else None, self._process.terminate):
            with contextlib.suppress(OSError):
                action() if action else None
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.control.unlink(missing_ok=True)

    def _send(self, data: bytes) -> None:
        """Raises nothing: who waits for an answer hears that the process has ended."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a shell may greet first
                words = json.loads(line)
                with self._news:
                    if (answers := self._waiting.get(words["id"])) is not None:
                        answers.append(words)
                        self._news.notify_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _overhear(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._said = (self._said + line)[-_SAID_BYTES:]

    def _why(self) -> ProviderFailed:
        time.sleep(0.05)  # for the last line of ssh to arrive
        return refusal(self.host, self._said.decode(errors="replace"))


class HostAnswer(ProviderFailed):
    """The program on a host could not do what it was asked for."""

    def __init__(self, host: str, said: str, why: str) -> None:
        known = refused(host, said, why)
        super().__init__(known.message, hint=known.hint)
        self.said = said


def uploaded(link: HostLink, agent: Path) -> None:
    """The agent is on the host. Sent once for each version."""
    if not link.ask("has", agent=agent.name)["there"]:
        link.ask("put", 60.0, agent=agent.name, data=base64.b64encode(agent.read_bytes()).decode())
