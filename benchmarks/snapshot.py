"""A big source tree: seen for the first time, and submitted again after one change."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, clean_environment, on_pipe, workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import Stoker, installed
from stoker.client.source import tree

FILES_PER_FOLDER = 100
FILE_BYTES = 2000
SCAN = "stoker.client.source.tree.scan"
PLAN = "stoker plan, over a tree of one file"
RUN = "stoker run --detach, over a tree of one file"
FIRST_FILES = 5_000
FIRST_INIT = "stoker init, for the first time"
FIRST_PLAN = "stoker plan, for the first time"
GOALS = {name: Goal(at_most=0.5) for name in (SCAN, PLAN, RUN, FIRST_INIT, FIRST_PLAN)}

_changes = itertools.count()


def run(plan: Plan) -> Result:
    result = Result("snapshot", versions={"stoker": installed()})
    files = plan.size(10_000, 1_000)
    with workplace() as place, ExitStack() as services:
        small, big = _tree(place / "small", 1), _tree(place / "big", files)
        contestants = _stoker(services.enter_context(Stoker(place / "stoker")), small, big)
        new = plan.size(FIRST_FILES, files)
        first = _first(services.enter_context(Stoker(place / "newcomer")), _tree(place / "new", new))
        if not plan.alone:
            result.versions[peers.RAY.name] = peers.install(peers.RAY)
            contestants |= _git(place, big) | _ray(place, services, small, big)
        samples = plan.interleave({**contestants, **first})
    for name, taken in samples.items():
        told = f"of {new:,} files" if name in first else f"one of {files:,} files changed"
        result.add(f"{name}, {told}", "s", taken, GOALS.get(name))
    return result


def _first(stoker: Stoker, folder: Path) -> dict[str, Callable[[], float]]:
    """The whole command, over a tree that it has never seen; the server is up."""

    def forget() -> None:
        stoker.start()
        shutil.rmtree(stoker.home / "trees", ignore_errors=True)

    def taken(*arguments: str) -> Callable[[], float]:
        command = stoker.command(arguments[0], *arguments, folder=folder, before=forget)
        return lambda: on_pipe(command).total_s

    return {FIRST_INIT: taken("init", "--force"), FIRST_PLAN: taken("plan")}


def _stoker(stoker: Stoker, small: Path, big: Path) -> dict[str, Callable[[], float]]:
    def settle() -> None:
        # The run just submitted would unpack its tree beside the next measurement.
        stoker.client().run("last").wait(timeout_s=120)

    def added(*arguments: str, after: Callable[[], object] = lambda: None) -> Callable[[], float]:
        name = " ".join(arguments)
        return lambda: _added(
            stoker.command(name, *arguments, folder=small, before=stoker.start, after=after),
            stoker.command(name, *arguments, folder=big, before=stoker.start, after=after),
        )

    return {
        SCAN: lambda: _scan(stoker, big),
        PLAN: added("plan"),
        RUN: added("run", "--detach", after=settle),
    }


def _scan(stoker: Stoker, folder: Path) -> float:
    _change(folder)
    begun = time.perf_counter()
    tree.scan(folder, index=stoker.home.parent / "scan-index")
    return time.perf_counter() - begun


def _git(place: Path, big: Path) -> dict[str, Callable[[], float]]:
    folder = place / "git"
    shutil.copytree(big, folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, env=clean_environment({}), check=True, timeout=60)
    command = Command("git", ("sh", "-c", "git add --all && git write-tree"), folder, before=lambda: _change(folder))
    return {"git add, git write-tree": lambda: on_pipe(command).total_s}


def _ray(place: Path, services: ExitStack, small: Path, big: Path) -> dict[str, Callable[[], float]]:
    environment = {**peers.RAY.surroundings(place / "home"), **services.enter_context(peers.ray_head(place))}
    argv = [str(peers.RAY.bin / "ray"), "job", "submit", "--no-wait", "--working-dir", ".", "--", "python", "script.py"]

    def settle() -> None:
        # Ray takes about five seconds to start a job; the next measurement should not share the machine with it.
        time.sleep(8)

    def command(folder: Path) -> Command:
        return Command("ray", tuple(argv), folder, environment, after=settle)

    return {"ray job submit --no-wait, over a tree of one file": lambda: _added(command(small), command(big))}


def _added(small: Command, big: Command) -> float:
    """What the big tree takes more than the small one, with one file of each just changed."""
    _change(small.folder)
    floor = on_pipe(small).total_s
    _change(big.folder)
    return on_pipe(big).total_s - floor


def _tree(root: Path, files: int) -> Path:
    root.mkdir()
    (root / "stoker.yaml").write_text("name: tree\nrun: python script.py\n", encoding="utf-8")
    _change(root)
    for number in range(files - 1):
        folder = root / f"package{number // FILES_PER_FOLDER:03d}"
        folder.mkdir(exist_ok=True)
        text = f"# file {number}\n".ljust(FILE_BYTES, "x") + "\n"
        (folder / f"module{number:05d}.py").write_text(text, encoding="utf-8")
    return root


def _change(folder: Path) -> None:
    (folder / "script.py").write_text(f"print({next(_changes)})\n", encoding="utf-8")
