"""Scripts after the shape of public ones, as they are and with the job file that `stoker init` wrote, evicted twice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.client import launch
from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.client.settings import Settings, from_environment

SCRIPTS = Path(__file__).with_name("scripts")
PATIENCE_S = 90.0


class Story(NamedTuple):
    """What a script prints after each unit of work, the model that it leaves, and what is to be run before."""

    done: str
    model: str
    lost: int  # units of work that may be repeated: one interval between its saves, and the one that is under way
    prepare: str = ""


STORIES = {
    "constants": Story(r"^epoch (\d+): loss", "state.pt", 2),
    "imagenet": Story(r"^Epoch: \[(\d+)\]", "checkpoint.pth.tar", 2),
    "nanogpt": Story(r"^iter (\d+): loss", "ckpt.pt", 4, "data/shakespeare/prepare.py"),
    "writes_to_cwd": Story(r"^Epoch (\d+)/45", "epoch_45.npz", 2),
    "lightning_cli": Story(r"^epoch (\d+) done", "lightning_logs/version_*/checkpoints/*.ckpt", 2),
}


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    found = from_environment({**os.environ, "STOKER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"})
    yield found
    launch.stop(found)


def wait(ready: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.05)


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STORIES)
def test_a_script_as_it_is_survives_two_evictions_and_brings_its_model_back(
    name: str, tmp_path: Path, settings: Settings
) -> None:
    story, place = STORIES[name], tmp_path / name
    shutil.copytree(SCRIPTS / name, place)
    if story.prepare:
        subprocess.run([sys.executable, story.prepare], cwd=place, check=True)
    stoker = [str(Path(sys.executable).with_name("stoker"))]
    subprocess.run([*stoker, "init"], cwd=place, env=dict(settings.environ), check=True)
    subprocess.run([*stoker, "run", "--detach", "--name", "it"], cwd=place, env=dict(settings.environ), check=True)
    run = Client.connect(settings).run("it")

    def done(attempt: int) -> list[int]:
        log = b"".join(run.logs(attempt=attempt)).decode() if len(run.refresh().facts.attempts) >= attempt else ""
        return [int(one) for one in re.findall(story.done, log, re.M)]

    for attempt in (1, 2):
        wait(lambda attempt=attempt: len(done(attempt)) >= 5, f"five units of attempt {attempt}")
        wait(lambda: _is_safe(run), "a commit")
        run.evict(notice_s=2.0)
        wait(lambda attempt=attempt: done(attempt + 1), f"attempt {attempt + 1}")
    wait(lambda: not run.refresh().facts.open, "the end")
    assert run.facts.state == "succeeded", run.facts.reason
    assert [one.state for one in run.facts.attempts] == ["evicted", "evicted", "ended"]
    for attempt in (1, 2):
        before, after = done(attempt)[-1], done(attempt + 1)[0]
        assert before - story.lost < after <= before + 1, (done(attempt), done(attempt + 1))
    assert list((place / "outputs" / "it").glob(story.model)), sorted((place / "outputs" / "it").rglob("*"))


def _is_safe(run: Run) -> bool:
    facts = run.refresh().facts
    return facts.checkpoint_files + facts.output_files > 0
