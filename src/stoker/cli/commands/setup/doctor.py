"""`stoker doctor`: checks this computer, whether a run in a cloud would start, and whether it would resume."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

from stoker import __version__
from stoker.cli.command import Command, json_option
from stoker.cli.view import words
from stoker.cli.view.terminal import paint_data, say, show, show_json, write_file
from stoker.client.local import launch
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import BadInput, HomeUnusable, StokerError
from stoker.model.cause import Cause
from stoker.model.run.run import Event
from stoker.model.workspace.store import CheckResult, Finding, failed

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
            "disk",
            CheckResult.WARN,
            f"{words.size_text(free)} free",
            "delete old runs: `stoker prune --older-than 30d`",
        )
    return Finding("disk", CheckResult.OK, f"{words.size_text(free)} free")


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
    return Finding("database", CheckResult.OK, f"{path}, {words.size_text(path.stat().st_size)}")


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


_STYLES = {CheckResult.OK: "good", CheckResult.WARN: "warn", CheckResult.FAIL: "error", CheckResult.SKIP: "faint"}
_WIDEST = 26  # of a name: `deployment southcentralus`
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    cls=Command,
    examples=[
        ("stoker doctor", "check this computer"),
        ("stoker doctor --cloud azure", "also check whether a run in Azure would start; free of charge"),
        (
            "stoker doctor --cloud azure --spend 0.05 --report azure.md",
            "prove it with a real eviction, for at most 5 cents",
        ),
        ("stoker doctor --json", "the same, for a program or a bug report"),
    ],
)
@click.option("--cloud", metavar="NAME", help="Also check a cloud account: azure, or azure-twin for its twin.")
@click.option(
    "--spend", metavar="USD", help="Then test a run on a spot machine that is evicted, for at most this much."
)
@click.option("--report", type=_FILE, metavar="FILE", help="Write a Markdown report to FILE, without secrets.")
@click.option("--record", type=_FILE, metavar="FILE", help="Write all requests and responses to FILE, without secrets.")
@json_option()
def command(cloud: str | None, spend: str | None, report: Path | None, record: Path | None, as_json: bool) -> int:
    """Check that this computer or a cloud is ready.

    Each line is ok, warn or fail, with what to do about it. The exit code is 1 if something fails: a run could not
    start then.

    With --cloud, checks the account: login, clock, subscription, services, and in each region sizes, images, quotas,
    rights and policies. Azure validates the exact deployment that a run would create, in an empty resource group that
    is deleted afterwards. Nothing is started or billed. The machine is that of the stoker.yaml in this folder, or the
    cheapest.

    With --spend, if nothing has failed, a tiny run starts on the cheapest spot machine. The cloud evicts that machine
    on request, the run resumes on another one and finishes, and everything is removed. The amount is the run's budget
    and is never exceeded. This takes some minutes; Azure may take 30 to evict a machine.

    With --record, every request to the cloud and its response is a JSON line in FILE, without secrets: tokens, keys and
    signatures are removed, and ids replaced. Attach it to a bug report: it can be replayed as a test.
    """
    if not cloud and (spend or report or record):
        raise BadInput(
            "--spend, --report and --record require --cloud", hint="--cloud azure", cause=Cause.OPTIONS_CONFLICT
        )
    settings, amount = from_environment(), _amount(spend)
    findings: list[Finding] = []
    events: list[Event] = []
    with _recorded(cloud, settings, record):
        for one in _findings(settings, cloud, amount, findings, events):
            findings.append(one)
            if not as_json:
                show(finding_line(one))
    if record:
        say(f"wrote all requests to the cloud and their responses to {record}, without secrets")
    if report and cloud:
        _write(report, cloud, findings, events, settings)
    if as_json:
        show_json({"ok": not failed(findings), "findings": findings, "events": events})
    return int(failed(findings))


def _amount(spend: str | None) -> Decimal | None:
    if spend is None:
        return None
    try:
        amount = Decimal(spend.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadInput(
            f"--spend is `{spend}`, expected a number of dollars", hint="--spend 0.05", cause=Cause.VALUE_INVALID
        ) from None
    if not amount.is_finite() or amount <= 0:
        raise BadInput(
            f"--spend is {spend}, expected more than 0 dollars", hint="--spend 0.05", cause=Cause.VALUE_INVALID
        )
    return amount


def _findings(
    settings: ClientSettings, cloud: str | None, spend: Decimal | None, before: list[Finding], events: list[Event]
) -> Iterator[Finding]:
    """`before` grows with what is yielded: nothing is spent if a check has failed."""
    yield from (check(settings) for check in CHECKS)
    if not cloud:
        return
    from stoker.client.local import preflight  # needed only with a cloud

    needs, told_by = preflight.needs_of(Path.cwd())
    if told_by:
        say(f"machines as requested by {told_by}")
    yield from preflight.findings(cloud, settings, needs, say)
    if spend is None:
        return
    if failed(before):
        yield Finding("proof", CheckResult.SKIP, "nothing was spent, because a check failed")
        return
    proof = preflight.proof(cloud, settings, spend, say)
    yield from proof.findings()
    events += proof.events


def _recorded(cloud: str | None, settings: ClientSettings, record: Path | None) -> AbstractContextManager[None]:
    if not cloud or not record:
        return nullcontext()
    from stoker.client.local import preflight  # as above

    return preflight.recorded(cloud, settings, record)


def _write(file: Path, cloud: str, findings: list[Finding], events: list[Event], settings: ClientSettings) -> None:
    from stoker.client.local.preflight import markdown  # as above

    text = markdown(cloud, __version__, datetime.now(UTC), findings, events, str(settings.home.root))
    write_file(file, text, "--report")
    say(f"wrote the report to {file}, without secrets")


def finding_line(one: Finding, *, widest: int = _WIDEST) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"
