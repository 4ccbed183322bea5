"""Scripts after the shape of public ones, with the job file that `stoker init` wrote: run as they are, and evicted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from project import ROOT
from shapes import SCRIPTS, SHAPES, Shape

from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.local import launch
from stoker.client.settings import ClientSettings, from_environment

BESIDE = ROOT / ".services"
PACE = Path(__file__).with_name("pace")
PATIENCE_S = 120.0


def _marked(names: list[str]) -> list[object]:
    """Those that are quick are part of every check."""
    return [
        pytest.param(name, marks=pytest.mark.heavy if SHAPES[name].story.quick else pytest.mark.slow) for name in names
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[ClientSettings]:
    found = from_environment({**os.environ, "STOKER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"})
    yield found
    launch.stop(found)


def wait(ready: Callable[[], object], what: str, run: RunHandle | None = None) -> None:
    """For something that happens while the run goes on."""
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, f"waited in vain for {what}"
        assert run is None or run.facts.open, f"{run.facts.state} before {what}: {run.facts.reason}"
        time.sleep(0.1)


def submitted(name: str, shape: Shape, tmp_path: Path, settings: ClientSettings) -> tuple[RunHandle, Path]:
    """A run of the script, with the job file as `stoker init` writes it."""
    if shape.story.beside:
        assert (BESIDE / shape.story.beside).exists(), f"run `make .services/{shape.story.beside}/installed`"
    shutil.copytree(SCRIPTS / name, tmp_path / name)
    place = tmp_path / name / shape.folder
    if shape.story.prepare:
        subprocess.run([sys.executable, shape.story.prepare], cwd=place, check=True)
    stoker = str(Path(sys.executable).with_name("stoker"))
    path = [tmp_path / PACE.name, *([BESIDE / shape.story.beside] if shape.story.beside else [])]
    shutil.copytree(PACE, path[0])
    env = {**settings.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    for words in (["init"], ["run", "--detach", "--name", "it"]):
        subprocess.run([stoker, *words], cwd=place, env=env, check=True)
    return Client.connect(settings).run("it"), place


def done(run: RunHandle, attempt: int, shape: Shape) -> list[int]:
    if len(run.refresh().facts.attempts) < attempt:
        return []
    log = b"".join(run.logs(attempt=attempt)).decode()
    return [int(one) for one in re.findall(shape.story.done, log, re.M)]


def check_results(run: RunHandle, place: Path, shape: Shape) -> None:
    assert run.facts.state == "succeeded", run.facts.reason
    brought = place / "outputs" / "it"
    assert list(brought.glob(shape.story.model)), sorted(str(one.relative_to(brought)) for one in brought.rglob("*"))
    points, name = run.metrics(), shape.story.metric
    assert name in points.names
    stored = [point for point in points if point.values.get(name) is not None]
    assert run.facts.metrics[name].count == len(stored), "a summary of all points, also of attempts that were lost"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", _marked([name for name, shape in SHAPES.items() if shape.story.lost]))
def test_a_script_as_it_is_survives_two_evictions_and_brings_its_model_back(
    name: str, tmp_path: Path, settings: ClientSettings
) -> None:
    shape = SHAPES[name]
    run, place = submitted(name, shape, tmp_path, settings)
    for attempt in (1, 2):
        wait(partial(_has_done, run, attempt, shape, 3), f"three units of attempt {attempt}", run)
        wait(lambda: _is_safe(run), "a commit", run)
        run.evict(notice_s=2.0)
        wait(partial(_has_done, run, attempt + 1, shape, 1), f"attempt {attempt + 1}", run)
    (tmp_path / PACE.name / "enough").touch()
    wait(lambda: not run.refresh().facts.open, "the end")
    assert [one.state for one in run.facts.attempts] == ["evicted", "evicted", "ended"]
    for attempt in (1, 2):
        before, after = done(run, attempt, shape), done(run, attempt + 1, shape)
        assert before[-1] - (shape.story.lost or 0) < after[0] <= before[-1] + shape.story.each, (before, after)
    check_results(run, place, shape)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if not shape.story.lost])
def test_a_script_that_saves_only_at_its_end_runs_as_it_is(name: str, tmp_path: Path, settings: ClientSettings) -> None:
    run, place = submitted(name, SHAPES[name], tmp_path, settings)
    (tmp_path / PACE.name / "enough").touch()
    wait(lambda: not run.refresh().facts.open, "the end")
    check_results(run, place, SHAPES[name])


def _has_done(run: RunHandle, attempt: int, shape: Shape, units: int) -> bool:
    return len(done(run, attempt, shape)) >= units


def _is_safe(run: RunHandle) -> bool:
    facts = run.refresh().facts
    return facts.checkpoint_files + facts.output_files > 0
