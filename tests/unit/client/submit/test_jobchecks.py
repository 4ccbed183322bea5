"""Everything that a job names exists, or the plan reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.client.settings import from_environment
from stoker.client.submit.preparation import prepare, unmet_ranks
from stoker.errors import JobInvalid
from stoker.model.job.job import Job


def planned(place: Path, run: str, **more: Any) -> set[str]:
    """The paths that would be sent."""
    settings = from_environment({"STOKER_HOME": str(place.parent / "home")})
    prepared = prepare(Job(name="a", run=run, **more), place, settings)
    return {entry.path for entry in prepared.tree.snapshot.entries}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for name in ("train.py", "src/fit.py", "pkg/__init__.py", "pkg/train.py", "go.sh", "hidden.py", "stale.pt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x = 1")
    (place / ".gitignore").write_text("hidden.py\n")
    return place


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ("python trian.py", "`trian.py`"),
        ("python -u src/train.py", "`src/train.py`"),
        ("cd src && python train.py", "`src/train.py`"),
        ("pip install x && python gone.py", "`gone.py`"),
        ("torchrun --nproc-per-node 2 gone.py", "`gone.py`"),
        ("python -m pkg.fit", "`pkg/fit.py`"),
        ("bash gone.sh", "`gone.sh`"),
        ("python hidden.py", "`hidden.py`"),
    ],
)
def test_a_script_that_is_not_there_is_a_problem_of_the_job(place: Path, run: str, found: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(place, run)
    [problem] = caught.value.problems
    assert (problem.field, problem.found) == ("run", found)


def test_the_nearest_script_and_the_ignore_file_are_named(place: Path) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(place, "python trian.py")
    assert caught.value.problems[0].nearest == "train.py"
    with pytest.raises(JobInvalid) as caught:
        planned(place, "python hidden.py")
    assert "an ignore file excludes" in caught.value.problems[0].expected


@pytest.mark.parametrize(
    "run",
    [
        "python train.py",
        "cd src && python fit.py && cd .. && python train.py",
        "git clone x && python x/gone.py",
        "python -m pkg.train",
        "python -m torch.distributed.run train.py",
        "python $SCRIPT",
        "python /opt/train.py",
        "python -c 'print(1)' gone.py",
        "cd $WHERE && python gone.py",
        "make && python generated.py",
        "sh ./go.sh",
        "echo x",
    ],
)
def test_what_is_there_or_cannot_be_known_is_no_problem(place: Path, run: str) -> None:
    assert "train.py" in planned(place, run)


@pytest.mark.parametrize(
    ("run", "more", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py", {"nodes": 2}, "torchrun"),
        ("python -m torch.distributed.run train.py", {"nodes": "2..4"}, "torch.distributed.run"),
        ("cd src && accelerate launch --num-processes 2 fit.py", {"nodes": 2}, "accelerate"),
        ("accelerate launch --cpu train.py", {"nodes": 2}, ""),
        ("torchrun train.py", {"processes": 2}, "torchrun"),
        ("torchrun train.py", {"launcher": "torchrun"}, "torchrun"),
        ("torchrun train.py", {}, ""),
        ("python train.py", {"nodes": 2, "launcher": "torchrun"}, ""),
        ("torchrun --nnodes=2 --node-rank $NODE_RANK --master-addr $MASTER_ADDR train.py", {"nodes": 2}, ""),
        ("torchrun --nnodes 2 --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT train.py", {"nodes": 2}, ""),
        ("accelerate launch --num_machines 2 --machine_rank $RANK train.py", {"nodes": 2}, ""),
        ("accelerate config default", {"nodes": 2}, ""),
    ],
)
def test_a_launcher_whose_ranks_would_not_meet_is_told(run: str, more: dict[str, Any], name: str) -> None:
    notes = unmet_ranks(Job.read({"name": "a", "run": run, **more}))
    assert [f"`{name}` in `run`" in note for note in notes] == [True] * bool(name)
    assert all("launcher: torchrun" in note for note in notes)


@pytest.mark.parametrize("named", ["train.py", "*.py", "src/*", "go.sh"])
def test_a_source_file_as_a_checkpoint_is_refused(place: Path, named: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(place, "sh go.sh", checkpoints=[named])
    assert caught.value.problems[0].field == "checkpoints"
    assert "a file of your code" in caught.value.problems[0].found


@pytest.mark.parametrize("named", ["stale.pt", "*.pt", "**/*.pt"])
def test_a_checkpoint_of_an_earlier_run_does_not_come_along(place: Path, named: str) -> None:
    sent = planned(place, "python train.py", checkpoints=[named])
    assert "stale.pt" not in sent and {"train.py", "src/fit.py"} <= sent


def test_a_folder_with_a_suffix_is_one_because_it_is_there(place: Path) -> None:
    (place / "model.ckpt").mkdir()
    settings = from_environment({"STOKER_HOME": str(place.parent / "home")})
    job = Job(name="a", run="python train.py", checkpoints=("model.ckpt", "gone.ckpt"))
    assert prepare(job, place, settings).job.checkpoints == ("model.ckpt/", "gone.ckpt")
