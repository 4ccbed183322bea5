"""Runs on hosts over ssh: three namespaces with a real OpenSSH server each, and a store that is a folder of the server.

The hosts share this computer's disk, so the Python of the tests can be named by its path. They do not share a home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from services import KEY, Azurite
from stoker.testing.ssh_hosts import HostYard, lacking, ssh_hosts

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())

HERE = {"python": sys.executable, "packages": "none"}
COUNT = """
    import os, sys, time
    from pathlib import Path
    import stoker
    steps, kept = int(sys.argv[1]), Path("checkpoints/step.txt")
    start = int(kept.read_text()) if kept.exists() else 0
    print("starts at", start, "on", os.environ["HOME"].split("/")[-2], flush=True)
    for step in range(start, steps):
        if (step + 1) % 10 == 0:
            part = kept.with_suffix(".part"); part.write_text(str(step + 1)); part.replace(kept)
        stoker.log(step=step + 1, value=step + 1)
        time.sleep(0.05)
    Path("outputs").mkdir(exist_ok=True)
    Path("outputs/result.txt").write_text(str(steps))
"""


def oldest_python(folder: Path) -> Path:
    """A folder with the oldest Python that a host may have, of those on this computer, as `python3`."""
    managed = sorted(map(str, Path.home().glob(".pyenv/versions/3.10*/bin/python")))
    named = [*managed, shutil.which("python3.10"), sys.executable]
    usable = [one for one in named if one and not subprocess.run([one, "-V"], capture_output=True).returncode]
    folder.mkdir()
    (folder / "python3").symlink_to(usable[0])
    return folder


@pytest.fixture
def yard(shell: Shell, tmp_path: Path) -> Iterator[HostYard]:
    with ssh_hosts(tmp_path / "y", 3) as made:
        shell.environ["PATH"] = f"{made.path}{os.pathsep}{shell.environ['PATH']}"
        shell.home.mkdir(mode=0o700)
        (shell.home / "ssh.hosts").write_text(made.text())
        yield made


def counting(shell: Shell, steps: int, **more: Any) -> None:
    shell.write("train.py", COUNT)
    shell.job(f"python train.py {steps}", on="ssh", environment=HERE, **more)


def test_a_run_on_a_host_brings_its_model_back_and_leaves_nothing_there(
    shell: Shell, yard: HostYard, tmp_path: Path
) -> None:
    yard.hosts[0].variables = f"PATH={oldest_python(tmp_path / 'older')}:/usr/bin:/bin"
    yard.hosts[0].reconfigure()
    hosts = shell.write("hosts.txt", yard.text())
    shell.stoker("cluster", "create", "lab", "--provider", "ssh", "--hosts", str(hosts), "--max", "3")
    counting(shell, 20)
    (shell.home / "ssh.hosts").unlink()
    shell.stoker("run", "--set", "on=lab")
    assert "starts at 0 on lab1" in shell.stoker("logs", "job-1").stdout
    shell.wait_for(lambda: shell.facts("job-1")["landed"], "the outputs")
    assert (shell.folder / "outputs" / "job-1" / "result.txt").read_text() == "20"
    shell.wait_for(lambda: not any(host.nodes for host in yard.hosts), "the end of its folder")
    assert [host.agents() for host in yard.hosts] == [[], [], []]


@pytest.mark.heavy
def test_a_store_that_no_host_can_reach_goes_through_the_connection(
    shell: Shell, yard: HostYard, azurite: Azurite
) -> None:
    """It listens on the loopback of this computer, which is not that of a host."""
    adding = shell.start("store", "add", "far", azurite.new_container(), "--use", "--json", stdin=subprocess.PIPE)
    told = adding.communicate(KEY, timeout=60)
    assert not adding.returncode, told
    counting(shell, 20)
    shell.stoker("run", "--detach")
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded" and len(facts["attempts"]) == 1, facts
    assert "starts at 0 on lab" in shell.stoker("logs", "job-1").stdout
    shell.wait_for(lambda: shell.facts("job-1")["landed"], "the outputs")
    assert (shell.folder / "outputs" / "job-1" / "result.txt").read_text() == "20"
    shell.wait_for(lambda: not any(host.nodes for host in yard.hosts), "the end of its folder")


def reached(shell: Shell, run: str, step: int) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        facts = shell.facts(run)
        assert facts["state"] not in ("failed", "succeeded"), facts
        return facts if (facts["metrics"].get("value") or {}).get("step", 0) >= step else None

    return dict(shell.wait_for(look, f"step {step} of {run}"))


@pytest.mark.heavy
def test_a_run_whose_host_was_restarted_resumes_from_its_checkpoint(shell: Shell, yard: HostYard) -> None:
    counting(shell, 300)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 60)
    (host,) = [one for one in yard.hosts if one.nodes]
    host.crash()
    host.boot()
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", facts
    assert len(facts["attempts"]) == 2 and host.name in facts["attempts"][0]["message"], facts["attempts"]
    starts = [line.split("starts at ")[1].split()[0] for line in shell.stoker("logs", "job-1").stdout.splitlines()]
    assert int(starts[-1]) >= 10, starts
    shell.wait_for(lambda: not any(one.nodes for one in yard.hosts), "the end of its folders")
    assert not any(one.agents() for one in yard.hosts)


@pytest.mark.heavy
def test_a_run_continues_without_its_server_and_the_next_one_catches_up(shell: Shell, yard: HostYard) -> None:
    counting(shell, 160)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 20)
    shell.kill_server()
    (host,) = [one for one in yard.hosts if one.nodes]
    kept = next(host.home.glob(".stoker-node/*/nodes/*/node/work/checkpoints/step.txt"))
    shell.wait_for(lambda: int(kept.read_text()) >= 100, "steps without a server")
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts["attempts"]
    assert facts["metrics"]["value"]["step"] == 160
    shell.wait_for(lambda: not any(one.nodes for one in yard.hosts), "the end of its folder")


@pytest.mark.heavy
def test_a_run_does_not_notice_that_its_connection_was_cut(shell: Shell, yard: HostYard) -> None:
    counting(shell, 200)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 20)
    (host,) = [one for one in yard.hosts if one.nodes]
    host.link("down")
    kept = next(host.home.glob(".stoker-node/*/nodes/*/node/work/checkpoints/step.txt"))
    shell.wait_for(lambda: int(kept.read_text()) >= 100, "steps without a connection")
    host.link("up")
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts["attempts"]
    shell.wait_for(lambda: not any(one.nodes for one in yard.hosts), "the end of its folder")


DDP = """
    import os
    from pathlib import Path
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(dist.get_rank() + step))).sum().backward()
        optimizer.step()
    Path("outputs").mkdir(exist_ok=True)
    digest = sum(value.sum().item() for value in model.module.parameters())
    Path(f"outputs/rank-{dist.get_rank()}.txt").write_text(f"{dist.get_world_size()} {digest:.6f}")
    print("met at", os.environ["MASTER_ADDR"], flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.heavy
@pytest.mark.timeout(400)  # three imports of torch at once, on a machine that may be busy
def test_three_hosts_train_one_model_together(shell: Shell, yard: HostYard) -> None:
    """Their name leads to the loopback, as on most machines with Debian or Ubuntu: gloo would listen there."""
    shell.write("train.py", DDP)
    shell.job("python train.py", on="ssh", environment=HERE, nodes=3, env={"OMP_NUM_THREADS": "1"})
    shell.stoker("run", patience_s=300)
    shell.wait_for(lambda: shell.facts("job-1")["landed"], "the outputs")
    found = sorted((shell.folder / "outputs" / "job-1").rglob("rank-*.txt"))
    assert [path.name for path in found] == ["rank-0.txt", "rank-1.txt", "rank-2.txt"]
    assert len({path.read_text() for path in found}) == 1 and found[0].read_text().startswith("3 ")
    said = shell.stoker("logs", "job-1").stdout
    assert said.count("met at 10.213.") == 3, "at the first host's address, never at a loopback"
    shell.wait_for(lambda: not any(one.nodes for one in yard.hosts), "the end of its folders")
    assert not any(one.agents() for one in yard.hosts)
