"""Where Slurm's commands run and its jobs have their folders: this computer, or a login node that ssh reaches."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stoker.agent.machine.machine import remove_tree
from stoker.agent.pack import pack
from stoker.agent.processes.family import UNSHIPPED
from stoker.errors import NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.files import write_whole
from stoker.model.workspace.home import Home
from stoker.providers import surroundings
from stoker.providers.slurm import commands
from stoker.providers.ssh.link import LEAST_PYTHON, refusal

NODE = "stoker.providers.slurm.node"  # shipped with the agent
ANSWER_S = 20.0  # for a controller that is busy
END_S = 30.0  # to upload what a killed agent has left
_AWAY = 255  # what ssh exits with for its own troubles
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ControlMaster": "auto",
    "ControlPersist": "120",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
}
# Makes the folders, and prints where they are and which Python is new enough.
_HELLO = """umask 077; top="$HOME/.stoker-slurm/$1"
mkdir -p "$top/allocations" "$top/agents" "$top/environments" || exit 1
for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 $HOME/.local/bin/python3*; do
  "$p" -c "import sys; sys.exit(sys.version_info < (3, 10))" >/dev/null 2>&1 && break; p=
done
printf 'stoker-login\\n%s\\n%s\\n%s\\n' "$top" "$(command -v "$p")" "$(python3 --version 2>&1)"
command -v sbatch || echo
"""


class SlurmPlace(Protocol):
    """Folders of allocations, by the key of each. Raises ProviderUnavailable while it cannot be reached."""

    uv: str  # the one that builds environments; empty: the agent looks for one

    @property
    def python(self) -> str: ...

    @property
    def environments(self) -> str: ...

    def run(self, words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
        """Raises FileNotFoundError where there is no such command, and TimeoutExpired."""
        ...

    def folder(self, key: str) -> str: ...

    def agent(self) -> str:
        """The packed agent, where jobs find it."""
        ...

    def prepare(self, key: str, given: str) -> None:
        """A folder that only its owner can read, with the variables of the run in a file."""
        ...

    def claim(self, key: str) -> str:
        """The id of the job that has begun to work for it; empty: none has."""
        ...

    def glance(self) -> None:
        """Before a look at all of them."""
        ...

    def saw(self, key: str, mark: str) -> bool:
        """Whether this file was there at the last glance, or is there now."""
        ...

    def has(self, key: str, mark: str) -> bool:
        """Now."""
        ...

    def mark(self, key: str, name: str) -> None: ...

    def end(self, key: str, node: str) -> bool:
        """Ends what a killed agent has left, and uploads its last lines. False: not all of them."""
        ...

    def remove(self, key: str) -> None: ...

    def has_folder(self, path: str) -> bool: ...


class ThisComputer:
    """A login node, whose home the compute nodes share."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._top = home.root / "slurm" / "allocations"
        self._agent: Path | None = None
        beside = Path(sys.executable).with_name("uv")
        self.python, self.environments = sys.executable, str(home.environments)
        self.uv = (
            str(beside) if beside.exists() else shutil.which("uv") or ""
        )  # installed with Stoker, before any other

    def run(self, words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            input=given,
            env=commands.environment(surroundings({})),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )

    def folder(self, key: str) -> str:
        return str(self._top / key)

    def agent(self) -> str:
        if self._agent is None or not self._agent.exists():
            self._agent = pack(self._home.agents, (NODE,))
        return str(self._agent)

    def prepare(self, key: str, given: str) -> None:
        folder = self._top / key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(folder / commands.GIVEN, given, mode=0o600)

    def glance(self) -> None:
        """Files are looked at one by one."""

    def claim(self, key: str) -> str:
        try:
            return (self._top / key / "claim").read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def saw(self, key: str, mark: str) -> bool:
        return self.has(key, mark)

    def has(self, key: str, mark: str) -> bool:
        return (self._top / key / mark).exists()

    def mark(self, key: str, name: str) -> None:
        (self._top / key / name).touch()

    def end(self, key: str, node: str) -> bool:
        folder = self._top / key / node
        if not (folder / "access").exists() and not (folder / "errand.json").exists():
            return True
        command = [self.python, "-I", "-S", self.agent(), "end", "--folder", str(folder), "--key", node]
        try:
            done = subprocess.run(command, timeout=END_S, check=False, stdin=subprocess.DEVNULL, capture_output=True)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode != UNSHIPPED

    def remove(self, key: str) -> None:
        remove_tree(self._top / key)

    def has_folder(self, path: str) -> bool:
        return Path(path).is_dir()


class LoginNode:
    """Reached by OpenSSH's own client, with the configuration of its user; one connection serves all commands. Its home
    is shared with the compute nodes. Called from several threads."""

    uv = ""

    def __init__(self, host: str, home: Home, server: str) -> None:
        self.host = host
        self._home = home
        self._server = server
        self._lock = threading.Lock()
        self._known: list[str] = []  # what it said of itself
        self._sent = ""  # the name of the agent that is there
        self._seen: dict[str, tuple[str, tuple[str, ...]]] | None = None  # claim and names of files, by key

    @property
    def python(self) -> str:
        return self._facts[1]

    @property
    def environments(self) -> str:
        return f"{self._facts[0]}/environments"

    def run(self, words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
        done = self._ssh(shlex.join(["exec", *words]), given.encode(), ANSWER_S)
        out, err = (one.decode(errors="replace") for one in (done.stdout, done.stderr))
        if done.returncode == 127:
            raise FileNotFoundError(words[0])
        return subprocess.CompletedProcess(words, done.returncode, out, err)

    def folder(self, key: str) -> str:
        return f"{self._facts[0]}/allocations/{key}"

    def agent(self) -> str:
        packed = pack(self._home.agents, (NODE,))
        place = f"{self._facts[0]}/agents/{packed.name}"
        if self._sent != packed.name:
            keep = 'umask 077; [ -s "$1" ] && cat > /dev/null || { cat > "$1.part" && mv "$1.part" "$1"; }'
            self._sh(keep, place, given=packed.read_bytes())
            self._sent = packed.name
        return place

    def prepare(self, key: str, given: str) -> None:
        self._sh(
            'umask 077; mkdir -p "$1" && cat > "$1/$2.part" && mv "$1/$2.part" "$1/$2"',
            self.folder(key),
            commands.GIVEN,
            given=given.encode(),
        )

    def glance(self) -> None:
        """One request for the folders of all allocations."""
        said = self._sh(
            'cd "$1/allocations" && for f in */claim */ended.*; do [ -e "$f" ] || continue; '
            'case $f in */claim) echo "$f $(cat "$f")";; *) echo "$f";; esac; done',
            self._facts[0],
        )
        seen: dict[str, tuple[str, tuple[str, ...]]] = {}
        for line in said.splitlines():
            place, _, id = line.partition(" ")
            key, _, name = place.rpartition("/")
            claim, names = seen.get(key, ("", ()))
            seen[key] = id.strip() or claim, (*names, name)
        self._seen = seen

    def saw(self, key: str, mark: str) -> bool:
        return mark in self._glimpse(key)[1]

    def claim(self, key: str) -> str:
        return self._glimpse(key)[0]

    def has(self, key: str, mark: str) -> bool:
        return bool(self._sh('[ ! -e "$1" ] || echo there', f"{self.folder(key)}/{mark}").strip())

    def mark(self, key: str, name: str) -> None:
        self._sh(': > "$1"', f"{self.folder(key)}/{name}")

    def end(self, key: str, node: str) -> bool:
        """A compute node may have to be asked for: what it left is in the shared folder, its processes ended with its
        job."""
        folder = f"{self.folder(key)}/{node}"
        end = shlex.join([self.python, "-I", "-S", self.agent(), "end", "--folder", folder, "--key", node])
        said = self._sh(
            f'[ -e "$1/access" ] || [ -e "$1/errand.json" ] || exit 0; {end} >/dev/null 2>&1; echo $?',
            folder,
            within_s=END_S,
        )
        return said.strip() != str(UNSHIPPED)

    def remove(self, key: str) -> None:
        self._sh('rm -rf "$1"', self.folder(key))

    def has_folder(self, path: str) -> bool:
        return bool(self._sh('[ ! -d "$1" ] || echo there', path).strip())

    def _glimpse(self, key: str) -> tuple[str, tuple[str, ...]]:
        if self._seen is None:
            self.glance()
        return (self._seen or {}).get(key, ("", ()))

    @property
    def _facts(self) -> list[str]:
        with self._lock:
            if not self._known:
                said = self._sh(_HELLO, self._server).partition("stoker-login\n")[2]  # a shell may greet first
                self._known = self._checked(said.split("\n"))
            return self._known

    def _checked(self, said: list[str]) -> list[str]:
        if len(said) < 4 or not said[0].startswith("/"):
            raise ProviderFailed(f"login node `{self.host}` printed nothing that is known: {said[:1]}")
        if not said[1]:
            raise NotSetUp(
                f"login node `{self.host}` has no Python {LEAST_PYTHON} or newer: it has {said[2] or 'none'}",
                hint=f"install one there, for example `uv python install {LEAST_PYTHON}`; no root is needed",
            )
        if not said[3]:
            raise NotSetUp(
                f"login node `{self.host}` has no sbatch in its PATH",
                hint=f"`ssh {self.host} sbatch --version` must work; set PATH in its ~/.bashrc",
            )
        return said

    def _sh(self, script: str, *words: str, given: bytes = b"", within_s: float = ANSWER_S) -> str:
        done = self._ssh(shlex.join(["exec", "sh", "-c", script, "sh", *words]), given, within_s)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip()[-300:]
            raise ProviderFailed(f"login node `{self.host}`: {why or f'exit code {done.returncode}'}")
        return done.stdout.decode(errors="replace")

    def _ssh(self, command: str, given: bytes, within_s: float) -> subprocess.CompletedProcess[bytes]:
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        words = ["ssh", "-T", "-a", "-x", *options, "-S", str(self._socket()), "--", self.host, command]
        try:
            done = subprocess.run(words, input=given, capture_output=True, timeout=within_s, check=False)
        except FileNotFoundError:
            raise NotSetUp("ssh is not installed on this computer", hint="install OpenSSH's client") from None
        except subprocess.TimeoutExpired:
            hint = f"try it with `ssh {self.host} squeue`"
            why = f"login node `{self.host}` has not answered for {within_s:.0f} s"
            raise ProviderUnavailable(why, hint=hint) from None
        if done.returncode == _AWAY:
            raise refusal(self.host, done.stderr.decode(errors="replace"))
        return done

    def _socket(self) -> Path:
        """In a private folder whose path is short enough."""
        mark = hashlib.sha256(str(self._home.root).encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}-{mark}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        seen = folder.lstat()
        if seen.st_uid != os.getuid() or folder.is_symlink() or seen.st_mode & 0o077:
            raise ProviderFailed(f"{folder} belongs to another user", hint=f"remove it: rm -r {folder}")
        return folder / f"slurm-{hashlib.sha256(self.host.encode()).hexdigest()[:8]}"
