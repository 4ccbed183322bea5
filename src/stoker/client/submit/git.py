"""The origin of the code: the commit, the branch, and whether the tree has changes."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.model.snapshot import Git

if TYPE_CHECKING:
    from subprocess import Popen

_TIME_OUT_S = 2.0
_GRACE_S = 0.2  # to read the output of a git that ended long ago
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = "ref: "


class GitLook:
    """A query of a repository, which runs in the background until `facts` is called."""

    def __init__(self, root: Path) -> None:
        self._until = time.monotonic() + _TIME_OUT_S
        folder = _git_folder(root.absolute())
        self._status = _start(root, "status", "--porcelain", "--no-renames", "--", ".") if folder else None
        self._head = (_head(folder) or _asked_head(root, self._until)) if folder and self._status else None
        self._facts: Git | None = None

    def facts(self) -> Git | None:
        """Blocks until two seconds after the start, at most. A tree not known to be clean is called dirty."""
        if self._status:
            changes = _answer(self._status, self._until)
            self._status = None
            if self._head:
                commit, branch = self._head
                self._facts = Git(commit, branch, dirty=changes != b"")
        return self._facts


def _git_folder(root: Path) -> Path | None:
    for folder in (root, *root.parents):
        git = folder / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a worktree or a submodule
            return folder / _text(git).removeprefix("gitdir:").strip()
    return None


def _head(folder: Path) -> tuple[str, str] | None:
    """Commit and branch from git's own files; None if they are stored in another way."""
    head = _text(folder / "HEAD").strip()
    ref = head.removeprefix(_REF) if head.startswith(_REF) else ""
    commit = _commit(folder, ref) if ref else head
    return (commit, ref.removeprefix("refs/heads/")) if _COMMIT.fullmatch(commit) else None


def _commit(folder: Path, ref: str) -> str:
    shared = folder / (_text(folder / "commondir").strip() or ".")  # a worktree shares the refs of its repository
    loose = (_text(folder / ref) or _text(shared / ref)).strip()
    if loose:
        return loose
    packed = re.search(rf"^([0-9a-f]+) {re.escape(ref)}$", _text(shared / "packed-refs"), re.MULTILINE)
    return packed[1] if packed else ""


def _asked_head(root: Path, until: float) -> tuple[str, str] | None:
    git = _start(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    words = (_answer(git, until) or b"").decode().split() if git else []
    if len(words) != 2:
        return None
    commit, branch = words
    return commit, "" if branch == "HEAD" else branch


def _start(root: Path, *words: str) -> Popen[bytes] | None:
    import subprocess  # 5 ms, and needed only for a repository

    quiet = subprocess.DEVNULL
    command = ["git", "--no-optional-locks", "-C", str(root), *words]  # never blocks the user's own git
    try:
        return subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)
    except OSError:
        return None


def _answer(git: Popen[bytes], until: float) -> bytes | None:
    """git's output; None if it failed or timed out."""
    import subprocess  # loaded by `_start`

    try:
        said, _ = git.communicate(timeout=max(until - time.monotonic(), _GRACE_S))
    except subprocess.TimeoutExpired:
        git.kill()
        git.communicate()
        return None
    return said if git.returncode == 0 else None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
