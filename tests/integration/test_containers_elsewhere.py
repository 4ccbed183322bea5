"""Runs in containers on hosts over ssh and on a Slurm cluster, with real engines: as on this computer."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause
from stoker.testing.engines import ENGINES, IMAGE, marked, programs_without, python_image
from stoker.testing.slurm_cluster import slurm_cluster
from stoker.testing.ssh_hosts import HostYard, lacking, ssh_hosts

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
TRAIN = """
    import os, time
    from pathlib import Path
    from stoker.checkpoint import Checkpoint
    state = Path("checkpoints/state")
    step, seed = map(int, state.read_text().split()) if state.exists() else (0, 1)
    print("from", step, "in a container:", not Path("/usr/bin/ssh").exists(), flush=True)
    while step < 40:
        step, seed = step + 1, seed * 1103515245 % (1 << 31) + 1
        Path("part").write_text(f"{step} {seed}")
        os.replace("part", state)
        print(f"step {step} loss {1 / step:.4f}", flush=True)
        while step == 10 and os.environ["STOKER_ATTEMPT"] == "1":
            time.sleep(0.05)  # for its end
    Path("outputs/model").write_text(f"{step} {seed}")
"""


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ENGINES[request.param](tmp_path_factory.mktemp("e") / "e", python_image(KEPT)) as variables:
        yield {**variables, "NAME": request.param}


@pytest.fixture
def yard(shell: Shell, tmp_path: Path, engine: dict[str, str]) -> Iterator[HostYard]:
    """Two hosts, of which only the second one has the engine."""
    with ssh_hosts(tmp_path / "y", 2) as made:
        shell.environ["PATH"] = f"{made.path}{os.pathsep}{shell.environ['PATH']}"
        shell.home.mkdir(mode=0o700)
        (shell.home / "ssh.hosts").write_text(made.text())
        for host in made.hosts:
            has = host is made.hosts[1]
            given = {name: value for name, value in engine.items() if name != "HOME"} if has else {}
            programs = programs_without(host.folder / "bin", engine["PATH"], keep=engine["NAME"] if has else "")
            given["PATH"] = str(programs)
            host.variables = " ".join(f"{name}={value}" for name, value in given.items())
            host.reconfigure()
        yield made


def containers(engine: dict[str, str]) -> list[str]:
    listed = [engine["NAME"], "ps", "--all", "--quiet", "--filter", "label=stoker.node"]
    return subprocess.run(listed, env=engine, capture_output=True, text=True, check=True).stdout.split()


def train(shell: Shell, on: str, **more: Any) -> None:
    shell.write("train.py", TRAIN)
    shell.job("python train.py", **{"on": on, "environment": {"image": IMAGE}, **more})


def prints(shell: Shell, run: str, text: str) -> None:
    shell.wait_for(lambda: text in shell.stoker("logs", run, code=None).stdout, f"{text} of {run}")


def test_a_host_runs_an_image_and_a_killed_agent_there_leaves_no_container(
    shell: Shell, yard: HostYard, engine: dict[str, str]
) -> None:
    train(shell, "ssh")
    assert f"{engine['NAME']} " in shell.stoker("plan").stdout
    shell.stoker("run", "--detach")
    prints(shell, "job-1", "step 10 ")
    said = shell.stoker("exec", "job-1", "--", "sh", "-c", "pwd; ls /usr/bin; exit 7", code=7)
    assert "ssh" not in said.stdout.split()
    first = yard.hosts[1].nodes
    assert (len(containers(engine)), len(first), yard.hosts[0].nodes) == (1, 1, [])
    for pid in yard.hosts[1].agents():
        with suppress(ProcessLookupError):  # some are there only for a moment
            os.kill(pid, signal.SIGKILL)
    shell.wait_for(lambda: not marked(first[0]), "the end of its container")
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 2), facts
    assert "from 10 in a container: True" in shell.stoker("logs", "job-1").stdout
    shell.wait_for(lambda: facts["landed"] or shell.facts("job-1")["landed"], "the outputs")
    assert (shell.folder / "outputs" / "job-1" / "model").read_text().split()[0] == "40"
    assert containers(engine) == []


def test_hosts_without_an_engine_refuse_the_job_before_anything_starts(shell: Shell, yard: HostYard) -> None:
    (shell.home / "ssh.hosts").write_text("lab1\n")
    train(shell, "ssh")
    refused = shell.refused("run")
    assert (refused["code"], refused["problems"][0]["field"]) == ("job-invalid", "environment.image"), refused
    assert yard.hosts[0].nodes == []


def test_a_slurm_allocation_runs_an_image_and_resumes_in_the_next_one(
    shell: Shell, tmp_path: Path, engine: dict[str, str]
) -> None:
    """Slurm sends SIGTERM to every process of an allocation, also to the engine's command that stands in for a rank."""
    with slurm_cluster(tmp_path / "slurm") as cluster:
        programs = programs_without(tmp_path / "bin", engine["PATH"], keep=engine["NAME"])
        given = {name: value for name, value in engine.items() if name != "HOME"}
        shell.environ |= {**cluster.variables, **given, "PATH": str(programs)}
        train(shell, "slurm")
        shell.stoker("run", "--detach")
        prints(shell, "job-1", "step 10 ")
        assert len(containers(engine)) == 1
        cluster.command("scancel", *cluster.jobs())
        facts = shell.ended("job-1")
        assert (facts["state"], len(facts["attempts"])) == ("succeeded", 2), facts
        assert "from 10 in a container: True" in shell.stoker("logs", "job-1").stdout
        shell.wait_for(lambda: not containers(engine), "the end of all containers")


def test_a_slurm_node_without_an_engine_says_so(shell: Shell, tmp_path: Path) -> None:
    """Its agent ends every process of its node before it reports, and Slurm's own must not be among them."""
    with slurm_cluster(tmp_path / "slurm") as cluster:
        programs = programs_without(tmp_path / "bin", os.environ["PATH"], keep="")
        shell.environ |= {**cluster.variables, "PATH": str(programs)}
        train(shell, "slurm")
        shell.stoker("run", code=None, patience_s=200)
        assert shell.facts("job-1")["cause"] == Cause.CONTAINER_UNUSABLE
