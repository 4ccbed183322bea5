"""The checks of `stoker doctor`: each returns one finding and never raises."""

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
from stoker.client.settings import ClientSettings
from stoker.errors import HomeUnusable, StokerError
from stoker.model.workspace.finding import CheckResult, Finding

_LEAST_BYTES = 1_000_000_000
_LEAST_FILES = 1024
_EARLIEST = 1_735_689_600  # 2025-01-01: an earlier clock was never set


def python(_settings: ClientSettings) -> Finding:
    return Finding("stoker", CheckResult.OK, f"{__version__} on Python {sys.version.split()[0]} ({sys.executable})")


def runs_python(settings: ClientSettings) -> Finding:
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
        advice = "activate an environment whose Python works, or set `environment` in stoker.yaml"
        return Finding("runs use", CheckResult.FAIL, f"{settings.python} does not start: {error}", advice)
    return Finding("runs use", CheckResult.OK, f"Python {told.stdout.strip()} ({settings.python})")


def home(settings: ClientSettings) -> Finding:
    root = settings.home.root
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"x")
        launch.find(settings.home)  # raises if it belongs to another user
        mode = root.stat().st_mode if os.name != "nt" else 0
    except HomeUnusable as error:
        return Finding("home", CheckResult.FAIL, error.message, error.hint)
    except OSError as error:
        advice = "make it writable, or set STOKER_HOME to another folder"
        return Finding(
            "home", CheckResult.FAIL, f"{root} is not writable: {(error.strerror or str(error)).lower()}", advice
        )
    if mode & 0o077:
        advice = f"run `chmod 700 {root}`; the server does the same at its next start"
        return Finding("home", CheckResult.WARN, f"{root} is readable by other users of this computer", advice)
    return Finding("home", CheckResult.OK, f"{root} is writable, and private to you")


def disk(settings: ClientSettings) -> Finding:
    there = next(path for path in (settings.home.root, *settings.home.root.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < _LEAST_BYTES:
        return Finding(
            "disk", CheckResult.WARN, f"{words.size(free)} free", "delete old runs: `stoker prune --older-than 30d`"
        )
    return Finding("disk", CheckResult.OK, f"{words.size(free)} free")


def server(settings: ClientSettings) -> Finding:
    try:
        told = launch.status(settings)
    except StokerError as error:
        return Finding("server", CheckResult.FAIL, error.message, error.hint)
    if told is None:
        if not settings.local:
            return Finding("server", CheckResult.FAIL, f"{settings.server} does not respond", "check STOKER_SERVER")
        return Finding("server", CheckResult.OK, "not running; commands start it when they need it")
    if told["version"] != __version__:
        advice = "run `stoker server stop`; the next command starts the new version"
        return Finding("server", CheckResult.WARN, f"version {told['version']}, but this is {__version__}", advice)
    return Finding("server", CheckResult.OK, f"version {told['version']} at {told['url']}, process {told['pid']}")


def database(settings: ClientSettings) -> Finding:
    path = settings.home.database
    if not path.exists():
        return Finding("database", CheckResult.OK, "none yet")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as opened:
            answer = opened.execute("pragma quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return Finding(
            "database", CheckResult.FAIL, f"{path} cannot be read: {error}", _DATABASE_ADVICE.format(path=path)
        )
    if answer != "ok":
        return Finding("database", CheckResult.FAIL, f"{path} is damaged: {answer}", _DATABASE_ADVICE.format(path=path))
    return Finding("database", CheckResult.OK, f"{path}, {words.size(path.stat().st_size)}")


_DATABASE_ADVICE = "run `stoker server stop`, then move {path} away: it is rebuilt from the stored runs"


def uv(_settings: ClientSettings) -> Finding:
    beside = Path(sys.executable).with_name("uv.exe" if sys.platform == "win32" else "uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if not found:
        return Finding("uv", CheckResult.WARN, "not found: `environment` in job files will not work", "pip install uv")
    return Finding("uv", CheckResult.OK, found)


def git(_settings: ClientSettings) -> Finding:
    found = shutil.which("git")
    if not found:
        return Finding("git", CheckResult.WARN, "not found: runs will not record their commit", "install git")
    return Finding("git", CheckResult.OK, found)


def clock(_settings: ClientSettings) -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    if now < _EARLIEST:
        return Finding("clock", CheckResult.FAIL, f"{shown} is wrong", "set the clock")
    return Finding("clock", CheckResult.OK, shown)


def files(_settings: ClientSettings) -> Finding:
    try:
        import resource  # not on Windows
    except ImportError:
        return Finding("open files", CheckResult.OK, "no limit on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        return Finding(
            "open files", CheckResult.WARN, f"at most {soft:,}", f"run `ulimit -n {min(hard, 4096)}`, then start again"
        )
    return Finding("open files", CheckResult.OK, "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}")


CHECKS: tuple[Callable[[ClientSettings], Finding], ...] = (
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
