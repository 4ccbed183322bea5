"""`nodes: 2..4` on this computer: one of four nodes is lost while another run takes its place, and comes back later."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shell import Shell
from test_gangs import agent_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES, SEATS, BATCH = 48, 4, 2

TRAIN = """
    import json, os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler
    from stoker.checkpoint import Checkpoint

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = list(range(48))
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, 2, sampler=sampler)
    state = Checkpoint(model=model, optimizer=optimizer, every=5)
    attempt, told = int(os.environ["STOKER_ATTEMPT"]), os.environ["TOLD"]
    log = os.open(f"{told}/{attempt}-{dist.get_rank()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for epoch in state.epochs(10_000):
        sampler.set_epoch(epoch)
        seen = []
        for batch in state.micro_batches(loader):
            seen += batch.tolist()
            with state.accumulating(model):
                (model(batch[:, None] / 48).square().mean() * state.loss_scale).backward()
            if state.completes_step:
                optimizer.step()
                optimizer.zero_grad()
                os.write(log, f"{json.dumps([epoch, state.steps, dist.get_world_size(), seen])}\\n".encode())
                seen = []
                time.sleep(0.2)
                state.step(loss=1.0)
        ends = torch.tensor(float(os.path.exists(f"{told}/end")))
        dist.all_reduce(ends)
        if ends:
            break
"""


def steps(told: Path) -> dict[tuple[int, int], tuple[int, Counter[int]]]:
    """By epoch and step: the number of ranks, and the samples of all of them, in the last attempt that made it."""
    found: dict[tuple[int, int], dict[int, list[tuple[int, list[int]]]]] = {}
    for log in told.glob("*.log"):
        for line in log.read_text().splitlines():
            epoch, step, world, rows = json.loads(line)
            attempt = int(log.stem.split("-")[0])
            found.setdefault((epoch, step), {}).setdefault(attempt, []).append((world, rows))
    last = {place: made[max(made)] for place, made in found.items()}
    return {place: (ranks[0][0], Counter(row for _, rows in ranks for row in rows)) for place, ranks in last.items()}


def worlds(told: Path) -> list[int]:
    return [world for _, (world, _) in sorted(steps(told).items())]


@pytest.mark.parametrize("lost", [0, 3])
def test_a_run_continues_with_three_of_four_nodes_and_grows_back(shell: Shell, tmp_path: Path, lost: int) -> None:
    told = tmp_path / "told"
    told.mkdir()
    shell.environ["STOKER_SLOTS"] = "4"
    shell.write("train.py", TRAIN)
    shell.write("other.py", f"import os, time\nwhile not os.path.exists({str(told / 'free')!r}): time.sleep(0.1)\n")
    shell.job("python train.py", nodes="2..4", env={"TOLD": str(told)})
    shell.stoker("run", "--detach")

    def reached(world: int, attempt: int) -> dict[str, Any] | None:
        facts = shell.facts("job-1")
        assert facts["state"] not in ("failed", "succeeded"), facts
        newest = facts["attempts"][-1]
        saved = (newest["number"] >= attempt) and newest["saved"] and worlds(told)[-1:] == [world]
        return facts if saved else None

    facts = shell.wait_for(lambda: reached(4, 1), "four ranks", 120)
    shell.stoker("run", "--detach", *(f"--set={one}" for one in ("run=python other.py", "nodes=1", "priority=high")))
    os.kill(agent_of(shell, facts["attempts"][-1]["key"] + (f"-{lost}" if lost else "")), signal.SIGKILL)
    facts = shell.wait_for(lambda: reached(3, 2), "three ranks", 120)
    assert len(facts["attempts"][-1]["peers"]) == 2, facts
    (told / "free").touch()
    shell.wait_for(lambda: reached(4, 3), "four ranks again", 180)
    (told / "end").touch()
    assert shell.ended("job-1")["state"] == "succeeded"
    assert re.fullmatch("4+3+4+", "".join(str(world) for world in worlds(told))), worlds(told)
    made = steps(told)
    assert {sum(rows.values()) for _, rows in made.values()} == {SEATS * BATCH}, "the global batch stays the same"
    assert [step for _, step in sorted(made)] == list(range(len(made))), "no step is left out"
    for epoch in {epoch for epoch, _ in made}:
        rows = sum((rows for (each, _), (_, rows) in made.items() if each == epoch), Counter[int]())
        assert rows == Counter(range(SAMPLES)), f"epoch {epoch}: every sample once"
    said = shell.stoker("explain", "job-1").stdout
    assert "3 of 4 nodes" in said and "all 4 nodes are available again" in said, said
