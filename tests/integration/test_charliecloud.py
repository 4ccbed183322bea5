"""Runs in images with Charliecloud, as on nodes of HPC clusters: the same run as without one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import Shell, made_shell

from stoker.model.cause import Cause
from stoker.testing.engines import IMAGE, charliecloud, marked, programs_without, python_image
from stoker.testing.slurm_cluster import slurm_cluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
TRAIN = """
    import os, sys, time
    from pathlib import Path
    from stoker.checkpoint import Checkpoint
    state = Path("checkpoints/state")
    step, seed = map(int, state.read_text().split()) if state.exists() else (0, 1)
    print("from", step, "uid", os.getuid(), "in an image:", not Path("/usr/bin/ssh").exists(), flush=True)
    while step < 40:
        step, seed = step + 1, seed * 1103515245 % (1 << 31) + 1
        print(f"step {step} loss {1 / step:.4f}", flush=True)
        Path("part").write_text(f"{step} {seed}")
        os.replace("part", state)
        while "waits" in sys.argv and step == 10 * int(os.environ["STOKER_ATTEMPT"]) < 30:
            time.sleep(0.05)  # for its eviction
    Path("outputs/model").write_text(f"{step} {seed}")
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with charliecloud(tmp_path_factory.mktemp("e") / "e", python_image(KEPT)) as variables:
        yield variables


@pytest.fixture
def boxed(tmp_path: Path, engine: dict[str, str]) -> Iterator[Shell]:
    with made_shell(tmp_path) as shell:
        programs = programs_without(tmp_path / "bin", engine["PATH"], keep="charliecloud")
        builder = programs / "ch-image"  # finds its parts beside itself
        builder.unlink()
        builder.write_text('#!/bin/sh\nexec /usr/bin/ch-image "$@"\n')
        builder.chmod(0o755)
        shell.environ |= {**engine, "PATH": str(programs)}
        shell.write("train.py", TRAIN)
        yield shell


def prints(shell: Shell, run: str, text: str) -> None:
    shell.wait_for(lambda: text in shell.stoker("logs", run, code=None).stdout, f"{text} of {run}")


def test_a_run_in_an_image_evicted_twice_ends_with_the_same_bits_as_one_without(boxed: Shell) -> None:
    boxed.job("python3 train.py")
    boxed.stoker("run")
    boxed.job("python3 train.py waits", environment={"image": IMAGE})
    assert "charliecloud " in boxed.stoker("plan").stdout
    boxed.stoker("run", "--detach")
    for step in (10, 20):
        prints(boxed, "job-2", f"step {step} ")
        boxed.stoker("evict", "job-2", "--notice", "2s")
    facts = boxed.ended("job-2")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 3), facts
    boxed.stoker("fetch", "job-2", code=None)
    model = [boxed.folder / "outputs" / f"job-{number}" / "model" for number in (1, 2)]
    assert model[0].read_text() == model[1].read_text()
    assert f"uid {os.getuid()} in an image: True" in boxed.stoker("logs", "job-2").stdout
    assert facts["metrics"] and facts["packages"]["python"] and facts["image"].startswith("sha256:")


def test_visitors_signals_and_exit_codes_are_those_of_the_script(boxed: Shell) -> None:
    boxed.write(
        "train.py",
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), os._exit(41)))
        print("here", os.environ["TOKEN"][::-1], flush=True)
        time.sleep(600)
        """,
    )
    boxed.environ["TOKEN"] = "terces-a-si-siht"
    boxed.job("python3 train.py", environment={"image": IMAGE}, secrets=["TOKEN"])
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "here this-is-a-secret")
    said = boxed.stoker("exec", "job-1", "--", "sh", "-c", "ls /usr/bin; pwd; echo $STOKER_RUN; exit 7", code=7)
    assert "ssh" not in said.stdout.split() and "job-1" in said.stdout.split(), said
    assert "terces" not in " ".join(boxed.processes().values())
    assert "train.py" in boxed.stoker("stacks", "job-1").stdout
    boxed.stoker("cancel", "job-1", "--yes", code=None)
    boxed.ended("job-1")
    assert "told" in boxed.stoker("logs", "job-1").stdout
    boxed.job("exec sh -c 'kill -9 $$'", environment={"image": IMAGE})
    boxed.stoker("run", code=137)
    boxed.job("julia train.jl", environment={"image": IMAGE})
    boxed.stoker("run", code=None)
    assert boxed.facts("last")["cause"] == Cause.CONTAINER_UNUSABLE


def test_a_killed_agent_and_server_leave_nothing(boxed: Shell) -> None:
    boxed.job("python3 train.py waits", environment={"image": IMAGE})
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "step 10 ")
    key = next(one.name for one in (boxed.home / "nodes").iterdir())
    agents = boxed.agents()
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    prints(boxed, "job-1", "step 20 ")
    boxed.wait_for(lambda: not marked(key), "the end of the first attempt's processes")
    boxed.stoker("cancel", "job-1", "--yes", code=None)


def test_an_image_is_built_from_a_dockerfile_once(boxed: Shell) -> None:
    boxed.write("Dockerfile", f"FROM {IMAGE}\nARG COLOUR\nENV COLOUR=$COLOUR\nCOPY extra.txt /extra.txt\nRUN ls /\n")
    boxed.write("extra.txt", "copied\n")
    wanted = {"dockerfile": "Dockerfile", "build_args": {"COLOUR": "green"}}
    boxed.job("cat /extra.txt; echo $COLOUR", environment=wanted)
    first, second = (boxed.stoker("run", patience_s=120) for _ in range(2))
    assert first.stdout.split()[-2:] == second.stdout.split() == ["copied", "green"]
    boxed.write("Dockerfile", f"FROM {IMAGE}\nRUN exit 9\n")
    boxed.stoker("run", code=None)
    assert boxed.facts("last")["cause"] == Cause.INSTALL_FAILED


def test_a_slurm_allocation_runs_an_image_and_resumes_in_the_next_one(
    boxed: Shell, tmp_path: Path, engine: dict[str, str]
) -> None:
    with slurm_cluster(tmp_path / "slurm") as cluster:
        given = {name: value for name, value in engine.items() if name != "HOME"}
        boxed.environ |= {**cluster.variables, **given, "PATH": boxed.environ["PATH"]}
        boxed.job("python3 train.py waits", environment={"image": IMAGE}, on="slurm")
        boxed.stoker("run", "--detach")
        for step in (10, 20):
            prints(boxed, "job-1", f"step {step} ")
            cluster.command("scancel", *cluster.jobs())
        facts = boxed.ended("job-1")
        assert (facts["state"], len(facts["attempts"])) == ("succeeded", 3), facts
        assert "from 20 uid" in boxed.stoker("logs", "job-1").stdout
