"""What `stoker doctor` looks at: each check gives one finding, never an exception."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stoker import __version__
from stoker.cli.view import words
from stoker.client.local import launch
from stoker.client.settings import Settings
from stoker.errors import HomeUnusable, StokerError
from stoker.model.workspace.finding import Finding, Verdict

_LEAST_BYTES = 1_000_000_000
_LEAST_FILES = 1024
_EARLIEST = 1_735_689_600  # 2025-01-01: a clock before that was never set


def python(_settings: Settings) -> Finding:
    return Finding("stoker", Verdict.OK, f"{__version__} on Python {sys.version.split()[0]} ({sys.executable})")


def runs_python(settings: Settings) -> Finding:
    """The interpreter of runs whose job names no environment."""
    try:
        told = subprocess.run(
            [settings.python, "-c", "import sys; print(sys.version.split()[0])"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        advice = "activate an environment whose Python works, or name one with `environment` in stoker.yaml"
        return Finding("runs use", Verdict.FAIL, f"{settings.python} does not start: {error}", advice)
    return Finding("runs use", Verdict.OK, f"Python {told.stdout.strip()} ({settings.python})")


def home(settings: Settings) -> Finding:
    root = settings.home.root
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"x")
        launch.find(settings.home)  # refuses one that belongs to somebody else
        mode = root.stat().st_mode if os.name != "nt" else 0
    except HomeUnusable as error:
        return Finding("home", Verdict.FAIL, error.message, error.hint)
    except OSError as error:
        advice = "make it writable, or name another folder in STOKER_HOME"
        return Finding(
            "home", Verdict.FAIL, f"{root} cannot be written: {(error.strerror or str(error)).lower()}", advice
        )
    if mode & 0o077:
        advice = f"`chmod 700 {root}`; the next start of the server does so too"
        return Finding("home", Verdict.WARN, f"{root} is open to other users of this computer", advice)
    return Finding("home", Verdict.OK, f"{root} is writable, and yours alone")


def disk(settings: Settings) -> Finding:
    there = next(path for path in (settings.home.root, *settings.home.root.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < _LEAST_BYTES:
        return Finding("disk", Verdict.WARN, f"{words.size(free)} free", "free some: `stoker rm` removes old runs")
    return Finding("disk", Verdict.OK, f"{words.size(free)} free")


def server(settings: Settings) -> Finding:
    try:
        told = launch.status(settings)
    except StokerError as error:
        return Finding("server", Verdict.FAIL, error.message, error.hint)
    if told is None:
        if not settings.local:
            return Finding("server", Verdict.FAIL, f"{settings.server} does not answer", "check STOKER_SERVER")
        return Finding("server", Verdict.OK, "not running; the next command that needs it starts it")
    if told["version"] != __version__:
        advice = "`stoker server stop`; the next command starts the new one"
        return Finding("server", Verdict.WARN, f"version {told['version']}, and this is {__version__}", advice)
    return Finding("server", Verdict.OK, f"version {told['version']} at {told['url']}, process {told['pid']}")


def database(settings: Settings) -> Finding:
    path = settings.home.database
    if not path.exists():
        return Finding("database", Verdict.OK, "none yet")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as opened:
            answer = opened.execute("pragma quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return Finding("database", Verdict.FAIL, f"{path} cannot be read: {error}", _DATABASE_ADVICE.format(path=path))
    if answer != "ok":
        return Finding("database", Verdict.FAIL, f"{path} is damaged: {answer}", _DATABASE_ADVICE.format(path=path))
    return Finding("database", Verdict.OK, f"{path}, {words.size(path.stat().st_size)}")


_DATABASE_ADVICE = "`stoker server stop`, then move {path} away: it is rebuilt from the stored runs"


def uv(_settings: Settings) -> Finding:
    beside = Path(sys.executable).with_name("uv.exe" if sys.platform == "win32" else "uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if not found:
        return Finding("uv", Verdict.WARN, "not found: `environment` in job files will not work", "pip install uv")
    return Finding("uv", Verdict.OK, found)


def git(_settings: Settings) -> Finding:
    found = shutil.which("git")
    if not found:
        return Finding("git", Verdict.WARN, "not found: runs will not record their commit", "install git")
    return Finding("git", Verdict.OK, found)


def clock(_settings: Settings) -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    if now < _EARLIEST:
        return Finding("clock", Verdict.FAIL, f"says {shown}", "set the clock")
    return Finding("clock", Verdict.OK, shown)


def files(_settings: Settings) -> Finding:
    try:
        import resource  # not on Windows
    except ImportError:
        return Finding("open files", Verdict.OK, "no limit on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        return Finding(
            "open files", Verdict.WARN, f"at most {soft:,}", f"`ulimit -n {min(hard, 4096)}`, then start anew"
        )
    return Finding("open files", Verdict.OK, "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}")


CHECKS: tuple[Callable[[Settings], Finding], ...] = (
    python,
    runs_python,
    home,
    disk,
    server,
    database,
    uv,
    git,
    clock,
    files,
)
