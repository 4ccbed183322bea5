"""The folder of one node: the one place that spells what lies in it."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
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
