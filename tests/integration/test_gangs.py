"""One run on several nodes of this computer: started together, ended together, resumed together."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

# Ranks that need each other at every step, without a framework: whoever loses a peer fails, as in a collective.
TOGETHER = """
    import os, pickle, socket, struct, sys, time
    from pathlib import Path
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    def send(line, value):
        data = pickle.dumps(value); line.sendall(struct.pack("I", len(data)) + data)
    def take(line, count):
        data = b""
        while len(data) < count:
            piece = line.recv(count - len(data))
            if not piece: raise ConnectionError("a peer is gone")
            data += piece
        return data
    def receive(line): return pickle.loads(take(line, struct.unpack("I", take(line, 4))[0]))
    if rank == 0:
        door = socket.create_server(place); lines = [door.accept()[0] for _ in range(world - 1)]
    else:
        for _ in range(1200):  # for a minute: computers that are busy do not start their ranks at one moment
            try: lines = [socket.create_connection(place)]; break
            except OSError: time.sleep(0.05)
    def total(value):
        if rank: send(lines[0], value); return receive(lines[0])
        found = value + sum(receive(line) for line in lines)
        for line in lines: send(line, found)
        return found
"""

TRAIN = (
    TOGETHER
    + """
    import stoker
    steps, kept = int(sys.argv[1]), Path("checkpoints/state.txt")
    start, value = map(int, kept.read_text().split()) if kept.exists() else (0, 1)
    starts = total(start)
    assert starts == world * start, f"the ranks do not start from one step: {starts}"
    print("starts at", start, flush=True)
    for step in range(start, steps):
        value = (value * 31 + total(rank + step)) % 1_000_003
        if (step + 1) % 50 == 0:
            part = kept.with_suffix(".part"); part.write_text(f"{step + 1} {value}"); part.replace(kept)
        stoker.log(step=step + 1, value=value)
        time.sleep(0.03)
    Path("outputs").mkdir(exist_ok=True)
    Path(f"outputs/rank-{rank}.txt").write_text(str(value))
    Path("outputs/node.txt").write_text(os.environ["NODE_RANK"])
    Path("outputs/same.txt").write_text("the same")
"""
)


def gang(shell: Shell, steps: int, **more: Any) -> None:
    shell.write("train.py", TRAIN)
    shell.job(f"python train.py {steps}", **{"nodes": 3, **more})


def outputs(shell: Shell, run: str) -> dict[str, str]:
    shell.wait_for(lambda: shell.facts(run)["landed"], f"the outputs of {run}")
    top = shell.folder / "outputs" / run
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*.txt")}


def agent_of(shell: Shell, key: str) -> int:
    def look() -> int:
        errand = shell.home / "nodes" / key / "errand.json"
        return int(json.loads(errand.read_bytes())["agent"]) if errand.exists() else 0

    return int(shell.wait_for(look, f"the agent of {key}"))


def reached(shell: Shell, run: str, step: int) -> dict[str, Any]:
    """The run, once it has come so far."""

    def look() -> dict[str, Any] | None:
        facts = shell.facts(run)
        assert facts["state"] not in ("failed", "succeeded"), facts
        return facts if (facts["metrics"].get("value") or {}).get("step", 0) >= step else None

    return dict(shell.wait_for(look, f"step {step} of {run}"))


def test_every_rank_of_a_gang_knows_its_place_and_what_they_bring_comes_back_in_one_folder(shell: Shell) -> None:
    gang(shell, 8, processes=2)
    shell.write("train.py", TRAIN + '    print("place", *(os.environ[n] for n in sys.argv[2].split(",")))\n')
    shell.job(
        "python train.py 8 RANK,LOCAL_RANK,NODE_RANK,WORLD_SIZE,LOCAL_WORLD_SIZE", nodes=2, processes=2, name="wide"
    )
    ended = shell.stoker("run")
    said = shell.stoker("logs", "wide-1").stdout
    assert {line.split("place ")[1] for line in said.splitlines() if "place " in line} == {
        "0 0 0 4 2",
        "1 1 0 4 2",
        "2 0 1 4 2",
        "3 1 1 4 2",
    }
    found = outputs(shell, "wide-1")
    assert {name for name in found if name.startswith("rank-")} == {f"rank-{rank}.txt" for rank in range(4)}
    assert (found["node.txt"], found["node-1/node.txt"]) == ("0", "1"), "two nodes wrote one file: both are kept"
    assert "node-1/same.txt" not in found, "what is the same is kept once"
    assert ": node.txt" in ended.stdout + ended.stderr
    assert "(7 files, " in ended.stdout + ended.stderr, "four of the ranks, two of one name, and the same once"
    told = json.loads(shell.stoker("show", "wide-1", "--json").stdout)
    assert "outputs-clash" in [event["kind"] for event in told["events"]]


def test_a_metric_that_only_another_node_reports_is_shown_while_the_run_is_under_way(shell: Shell) -> None:
    gang(shell, 10_000, nodes=2)
    shell.write("train.py", TRAIN.replace("value=value)", '**{f"value_{rank}": value})'))
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: {"value_0", "value_1"} <= shell.facts("job-1")["metrics"].keys(), "the metrics of both")
    assert shell.facts("job-1")["state"] == "running"
    shell.stoker("cancel", "job-1")


def test_one_failed_rank_ends_its_peers_within_seconds_and_the_run_fails_with_its_words(shell: Shell) -> None:
    shell.write(
        "train.py",
        TOGETHER + '    if rank == 2: raise ValueError("bad batch", os.environ["KEY"])\n    time.sleep(600)\n',
    )
    shell.environ["KEY"] = "a-secret-of-mine"
    shell.job("python train.py", nodes=3, secrets=["KEY"])
    begun = time.monotonic()
    shell.stoker("run", code=1)
    assert time.monotonic() - begun < 60
    facts = shell.facts("job-1")
    assert facts["state"] == "failed" and "node 2" in facts["reason"], facts
    assert "ValueError: (" in facts["reason"], "the exception of the rank that failed first"
    assert "a-secret-of-mine" not in facts["reason"]
    assert facts["hint"] == "stoker logs job-1 --rank 2", "whose output is not the last in the log"
    assert len(facts["attempts"]) == 1, "a failure of the script is no loss"
    shell.wait_for(lambda: not shell.agents(), "the end of all agents")


def test_a_gang_whose_node_is_killed_resumes_from_the_last_common_checkpoint_with_the_same_result(shell: Shell) -> None:
    gang(shell, 400)
    shell.stoker("run", "--set", "name=calm")
    shell.stoker("run", "--set", "name=hit", "--detach")
    key = reached(shell, "hit-1", 110)["attempts"][-1]["peers"][0]["key"]
    os.kill(agent_of(shell, key), signal.SIGKILL)
    facts = shell.ended("hit-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["lost", "ended"]
    assert outputs(shell, "hit-1") == outputs(shell, "calm-1")
    starts = [line for line in shell.stoker("logs", "hit-1").stdout.splitlines() if "starts at" in line]
    assert len({line.rsplit(" ", 1)[1] for line in starts[-3:]}) == 1
    assert int(starts[-1].rsplit(" ", 1)[1]) >= 5, "it resumed"
    shell.wait_for(lambda: not list((shell.home / "nodes").glob("*")), "nothing left of the nodes")


@pytest.mark.heavy
@pytest.mark.parametrize("node", [0, 2])
def test_a_node_killed_before_the_ranks_have_met_costs_one_attempt(shell: Shell, node: int) -> None:
    gang(shell, 60)
    shell.stoker("run", "--detach")
    first = shell.wait_for(lambda: shell.facts("job-1")["attempts"], "an attempt")[0]
    os.kill(agent_of(shell, [first["key"], *(peer["key"] for peer in first["peers"])][node]), signal.SIGKILL)
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["lost", "ended"]
    assert len({text for name, text in outputs(shell, "job-1").items() if "rank-" in name}) == 1


@pytest.mark.heavy
def test_the_first_node_and_all_nodes_at_once_can_be_lost(shell: Shell) -> None:
    gang(shell, 400)
    shell.stoker("run", "--detach")
    attempt = reached(shell, "job-1", 110)["attempts"][-1]
    os.kill(agent_of(shell, attempt["key"]), signal.SIGKILL)
    shell.wait_for(lambda: len(shell.facts("job-1")["attempts"]) == 2, "a second attempt")
    reached(shell, "job-1", 220)
    attempt = shell.facts("job-1")["attempts"][-1]
    for member in (attempt, *attempt["peers"]):
        os.kill(agent_of(shell, member["key"]), signal.SIGKILL)
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["lost", "lost", "ended"]


OFTEN = (
    TOGETHER
    + """
    steps, kept = int(sys.argv[1]), Path("checkpoints/state.txt")
    start, value = map(int, kept.read_text().split()[:2]) if kept.exists() else (0, 1)
    starts = total(start)
    print("starts at", start, "of", starts, flush=True)
    assert starts == world * start, f"the ranks do not start from one step: {starts}"
    for step in range(start, steps):
        value = (value * 31 + total(rank + step)) % 1_000_003
        part = kept.with_suffix(".part"); part.write_text(f"{step + 1} {value} {rank}"); part.replace(kept)
        time.sleep(0.1)
    Path("outputs").mkdir(exist_ok=True)
    Path(f"outputs/rank-{rank}.txt").write_text(str(value))
"""
)


@pytest.mark.heavy
def test_nodes_that_save_ten_times_a_second_resume_from_one_step_whenever_they_are_killed(shell: Shell) -> None:
    shell.write("train.py", OFTEN)
    shell.job("python train.py 200", nodes=2)
    shell.stoker("run", "--detach")
    sets = shell.home / "store" / "runs"
    for number in (1, 2):
        made = f"*/checkpoints/**/sets/{number:04}-*.json"  # of this attempt
        shell.wait_for(lambda: len(list(sets.glob(made))) >= 3, f"checkpoints of attempt {number}")  # noqa: B023
        time.sleep(random.uniform(0, 1.5))
        attempt = shell.facts("job-1")["attempts"][-1]
        os.kill(agent_of(shell, random.choice([attempt, *attempt["peers"]])["key"]), signal.SIGKILL)
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["lost", "lost", "ended"]
    starts = re.findall(r"starts at (\d+)", shell.stoker("logs", "job-1").stdout)
    assert int(starts[-1]) >= 32, "it resumed"
    value = 1
    for step in range(200):
        value = (value * 31 + 2 * step + 1) % 1_000_003
    assert outputs(shell, "job-1")["rank-1.txt"] == str(value)


def test_an_evicted_gang_saves_and_resumes(shell: Shell) -> None:
    gang(shell, 400)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 110)
    shell.stoker("evict", "job-1", "--notice", "3s")
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]


def test_cancelling_a_gang_ends_all_of_it(shell: Shell) -> None:
    gang(shell, 10_000)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 5)
    shell.stoker("cancel", "job-1")
    assert shell.ended("job-1")["state"] == "cancelled"
    shell.wait_for(lambda: not list((shell.home / "nodes").glob("*")), "nothing left of the nodes")


def test_a_server_that_is_killed_finds_the_gang_again(shell: Shell) -> None:
    gang(shell, 400)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 5)
    shell.kill_server()
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded" and len(facts["attempts"]) == 1, facts


def test_two_gangs_wait_for_each_other_and_both_end(shell: Shell) -> None:
    gang(shell, 20)
    for _ in range(2):
        shell.stoker("run", "--detach")
    assert {shell.ended(name)["state"] for name in ("job-1", "job-2")} == {"succeeded"}


def test_a_gang_that_is_too_large_is_refused_with_the_number(shell: Shell) -> None:
    gang(shell, 5, nodes=65)
    [problem] = shell.refused("run")["problems"]
    assert (problem["field"], problem["found"], problem["expected"]) == ("nodes", "`65`", "at most 64 on `local`"), (
        problem
    )


@pytest.mark.parametrize("launcher", ["torchrun"])
@pytest.mark.heavy
def test_torchrun_starts_the_ranks_of_every_node(shell: Shell, launcher: str) -> None:
    shell.write(
        "train.py",
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        value = torch.ones(1) * dist.get_rank()
        dist.all_reduce(value)
        print("total", int(value.item()), dist.get_rank(), dist.get_world_size(), flush=True)
        dist.destroy_process_group()
        """,
    )
    shell.job("train.py", nodes=2, processes=2, launcher=launcher)
    shell.write(
        "stoker.yaml",
        json.dumps({"name": "job", "run": "python train.py", "nodes": 2, "processes": 2, "launcher": launcher}),
    )
    shell.stoker("run", patience_s=110)
    said = shell.stoker("logs", "job-1").stdout
    assert sorted(re.findall(r"total (\d \d \d)", said)) == [
        "6 0 4",
        "6 1 4",
        "6 2 4",
        "6 3 4",
    ]
    assert Path(shell.folder / "train.py").exists()
