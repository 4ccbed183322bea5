"""The folder of one node: the one place that spells what lies in it."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.stores.trees.clearing import clear


class NodeFolder:
    """Private to one attempt on one node. Everything but the lock and the agent's own log goes when it ends; the access
    goes last. `private` is a folder that is not on a disk, for what must not be found there."""

    def __init__(self, root: Path, private: Path | None = None) -> None:
        self.root = root
        self.lock = root / "lock"  # held by the agent as long as it lives
        self.agent_log = root / "agent.log"
        self.tree = root / "work"  # what the script may write to
        self.work = self.tree  # its working directory, and all of the tree unless it reads what lies beside that
        self.spool = root / "spool"  # what the ranks print, before it is shipped
        self.commands = root / "bin"  # `python`, where the interpreter goes by another name
        self.environment = root / "environment"  # a venv that cannot be shared with other runs
        self.packages = root / "packages.txt"  # what came along, with wheels by where they are here
        self.metrics = root / "metrics.jsonl"  # STOKER_METRICS
        self.notice = root / "notice"  # STOKER_NOTICE
        self.notice_saved = root / "notice.saved"  # written by a script's library once it has saved
        self.finished = root / "finished"  # STOKER_FINISHED
        self.restoring = root / "restoring"  # a checkpoint on its way back, until all of it is verified
        self.copies = root / "copies"  # of what stays open in the checkpoint folders: databases and others
        self.stop = root / "stop"  # STOKER_STOP
        self.toll = root / "toll"  # STOKER_TOLL: what the files begin with, one for each rank
        self.access = (private or root) / "access"  # mode 0600: the newest, for whoever finds the agent dead
        self.data = root / "data"  # leads to what the node holds of the cache, mounts among it
        self.fuse = root / "fuse.json"  # when the machine has to be released, for the tenant
        self.inside = root / "inside.json"  # mode 0600: where a shell on this machine finds the script
        self.terminal = root / "terminal"  # a socket: the terminal of a script that has one
        self.errand = root / "errand.json"  # whose orders these are, for whoever finds the agent dead
        self.begun = root / "begun"  # the orders that were begun on this disk, a line each

    def deepen(self, levels: int) -> None:
        """Has the working directory lie so deep in the tree that `../data` is still in it."""
        self.work = self.tree.joinpath(*["source"] * levels)

    def log(self, rank: int) -> Path:
        return self.spool / f"{rank}.log"

    def has_begun(self, orders: str) -> bool:
        """An agent with this disk has begun to carry out these orders."""
        try:
            return orders in self.begun.read_text(encoding="utf-8").splitlines()
        except OSError:
            return False

    def note_begun(self, orders: str) -> None:
        if not self.has_begun(orders):
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.begun.open("a", encoding="utf-8") as file:
                file.write(f"{orders}\n")

    def make(self, errand: Mapping[str, Any]) -> None:
        """Makes it empty: what an earlier agent left is removed first."""
        self.clear()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.tree, self.spool):
            folder.mkdir(mode=0o700)
        self.work.mkdir(parents=True, exist_ok=True)
        part = self.errand.with_suffix(".part")
        part.write_text(json.dumps(errand))
        part.replace(self.errand)

    def clear(self) -> None:
        for folder in (self.tree, self.spool, self.commands, self.environment, self.restoring, self.copies):
            remove_tree(folder)
        said = (self.metrics, self.notice, self.notice_saved, self.finished, self.stop)
        for file in (*said, self.packages, self.inside, self.terminal, self.errand):
            file.unlink(missing_ok=True)
        for file in self.root.glob(f"{self.toll.name}.*"):
            file.unlink(missing_ok=True)


def remove_tree(top: Path) -> None:
    """Removes whatever is there, even where the script took away its own write permission. Missing is fine."""
    try:
        clear(str(top))
    except PermissionError:  # of the folder it is in
        top.parent.chmod(stat.S_IRWXU)
        clear(str(top))


# The machine an agent is on, as it was told about it.

DRIVER_S = 240.0


@dataclass(frozen=True, slots=True)
class Machine:
    folder: NodeFolder
    environments: Path
    uv: str  # empty: look for it
    library: Path  # what scripts import stoker from
    variables: Mapping[str, str] = field(repr=False)  # the agent's own, with the secrets of the run
    cloud: str = ""  # the module of its cloud's plug-in, see `cloud.py`; empty: it is of none
    events: str = ""  # the URL where the machine hears that it will be taken away; empty: nobody says so
    ready_s: float = 0.0  # how long it may take until the machine is ready for a script; 0: it always is
    reboot_mark: str = ""  # a file that is there as long as the machine has to be restarted
    restored: bool = False  # its provider made it again, after an eviction: an earlier one has begun the attempt
    package_lock: str = ""  # a file that is locked as long as packages are being installed
    quiet_s: float = (
        DRIVER_S  # a driver that is missing, and that nothing has been installing for so long, does not come
    )
    processes: Path = Path("/proc")

    def agent_command(self, verb: str) -> list[str]:
        """How another process does something with the agent's code."""
        return [sys.executable, "-I", "-S", *_from(self.library), verb]


def _from(library: Path) -> list[str]:
    """A packed agent is run as it is; sources have to be told where they are."""
    if library.is_file():
        return [str(library)]
    start = (
        f"import sys; sys.path.insert(0, {str(library)!r}); from stoker.agent.__main__ import main; sys.exit(main())"
    )
    return ["-c", start]
