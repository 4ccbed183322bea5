"""The folder of one node: the one place that defines the names in it."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.files import write_whole
from stoker.stores.trees.clearing import clear


class NodeFolder:
    """Private to one attempt on one node. Everything but the lock and the agent's own log is removed when it ends; the
    access token goes last. `private` is a folder in memory, for what must not be on a disk."""

    def __init__(self, root: Path, private: Path | None = None) -> None:
        self.root = root
        self.lock = root / "lock"  # held as long as the agent lives
        self.agent_log = root / "agent.log"
        self.tree = root / "work"  # what the script may write to
        self.work = self.tree  # its working directory: the whole tree, unless it reads parent folders
        self.spool = root / "spool"  # output of the ranks, before it is uploaded
        self.commands = root / "bin"  # `python`, where the interpreter has another name
        self.environment = root / "environment"  # a venv that cannot be shared with other runs
        self.packages = root / "packages.txt"  # the uploaded list, with local paths of wheels
        self.metrics = root / "metrics.jsonl"  # STOKER_METRICS
        self.notice = root / "notice"  # STOKER_NOTICE
        self.notice_saved = root / "notice.saved"  # written by the script's library once it has saved
        self.finished = root / "finished"  # STOKER_FINISHED
        self.restoring = root / "restoring"  # a checkpoint during its restore, until all of it is verified
        self.copies = root / "copies"  # of files that stay open in the checkpoint folders, such as databases
        self.stop = root / "stop"  # STOKER_STOP
        self.toll = root / "toll"  # STOKER_TOLL: path prefix of one file per rank
        self.access = (private or root) / "access"  # mode 0600: the newest token, for cleaning up after a dead agent
        self.data = root / "data"  # link to the node's part of the cache, including mounts
        self.fuse = root / "fuse.json"  # when the machine must be released, for the tenant
        self.inside = root / "inside.json"  # mode 0600: where a shell on this machine finds the script
        self.launch = root / "launch"  # mode 0700: what a launcher needs to start ranks, and their output
        self.terminal = root / "terminal"  # a socket: the terminal of a script that has one
        self.container = root / "container.json"  # mode 0600: how to remove it, for cleaning up after a dead agent
        self.enter = root / "enter"  # mode 0600: what a shell in a container reads for people
        self.container_log = root / "container.log"  # what its engine said
        self.home = root / "home"  # of ranks in a container
        self.context = root / "context"  # that an image is built from
        self.errand = root / "errand.json"  # whose orders these are, for cleaning up after a dead agent
        self.begun = root / "begun"  # the orders that were started on this disk, one per line

    def deepen(self, levels: int) -> None:
        """Moves the working directory so deep into the tree that `../data` is still inside."""
        self.work = self.tree.joinpath(*["source"] * levels)

    def log(self, rank: int) -> Path:
        return self.spool / f"{rank}.log"

    def has_begun(self, orders: str) -> bool:
        """An agent with this disk has started these orders."""
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
        """Creates it empty: what an earlier agent left is removed first."""
        self.clear()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.tree, self.spool):
            folder.mkdir(mode=0o700)
        self.work.mkdir(parents=True, exist_ok=True)
        write_whole(self.errand, json.dumps(errand))

    def clear(self) -> None:
        for folder in (
            self.tree,
            self.spool,
            self.commands,
            self.environment,
            self.restoring,
            self.copies,
            self.launch,
            self.home,
            self.context,
        ):
            remove_tree(folder)
        said = (self.metrics, self.notice, self.notice_saved, self.finished, self.stop)
        for file in (*said, self.packages, self.inside, self.enter, self.container_log, self.terminal, self.errand):
            file.unlink(missing_ok=True)
        for file in self.root.glob(f"{self.toll.name}.*"):
            file.unlink(missing_ok=True)


def remove_tree(top: Path) -> None:
    """Removes everything, even where the script removed its own write permission. A missing tree is fine."""
    try:
        clear(str(top))
    except PermissionError:  # of its parent folder
        top.parent.chmod(stat.S_IRWXU)
        clear(str(top))


# The machine of an agent, as configured.

DRIVER_S = 240.0


@dataclass(frozen=True, slots=True)
class NodeMachine:
    folder: NodeFolder
    environments: Path
    uv: str  # empty: look for it
    library: Path  # where scripts import stoker from
    variables: Mapping[str, str] = field(repr=False)  # the agent's own, with the secrets of the run
    cloud: str = ""  # the module of its cloud's plug-in, see `cloud.py`; empty: none
    events: str = ""  # the URL of eviction notices; empty: none
    ready_s: float = 0.0  # how long the machine may take to be ready for a script; 0: it always is
    reboot_mark: str = ""  # a file that exists while the machine requires a restart
    restored: bool = False  # its provider restored it after an eviction: an earlier VM has started the attempt
    package_lock: str = ""  # a file that is locked while packages are being installed
    engine_unit: str = ""  # the service that installs a container engine; empty: nothing does
    within_image: bool = False  # the machine is a container of the image that the job names
    quiet_s: float = DRIVER_S  # after so long without an installation, a missing driver is not expected any more
    processes: Path = Path("/proc")

    def agent_command(self, verb: str) -> list[str]:
        """The command with which another process runs the agent's code."""
        return agent_command(self.library, verb)


def agent_command(library: Path, verb: str) -> list[str]:
    return [sys.executable, "-I", "-S", *_from(library), verb]


def _from(library: Path) -> list[str]:
    """A packed agent runs as it is; for sources, their folder is added to the path."""
    if library.is_file():
        return [str(library)]
    start = (
        f"import sys; sys.path.insert(0, {str(library)!r}); from stoker.agent.__main__ import main; sys.exit(main())"
    )
    return ["-c", start]
