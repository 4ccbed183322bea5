"""Which processes a node starts, and with what in their environment: no process is started here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.launch import Workplace, command_line, commands, environment
from stoker.checkpoint import surroundings
from stoker.model.job.job import Job
from stoker.model.node.orders import Orders

FOLDER = NodeFolder(Path("/node"))


def orders(run: str = "python train.py", *, nodes: int = 1, node: int = 0, data: Any = None, **job: Any) -> Orders:
    one = Job(name="ants", run=run, data={name: {"path": path} for name, path in (data or {}).items()}, **job)
    return Orders("r1", "ants-1", 2, node, "key-1", one, "snap", "/usr/bin/python3", data or {}, nodes, "10.0.0.1")


def place(processes: int = 1, **variables: str) -> Workplace:
    return Workplace(FOLDER, "/venv/bin/python", "/venv/bin", "/venv", "", Path("/a.pyz"), variables, processes, 29500)


def test_a_single_rank_runs_the_command_in_a_shell() -> None:
    (one,) = commands(orders(), place())
    assert one.rank == 0
    assert one.argv == ("/bin/sh", "-c", "exec python train.py")
    assert not one.launches


def test_ranks_are_numbered_across_nodes() -> None:
    ranks = commands(orders(nodes=3, node=1), place(processes=2))
    assert [one.rank for one in ranks] == [2, 3]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [ranks[1].env[name] for name in names] == ["3", "6", "1", "2", "1", "10.0.0.1", "29500"]


RENDEZVOUS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}


def test_a_single_process_finds_no_sign_of_distributed_training() -> None:
    """nanoGPT and others start DDP as soon as `RANK` is set, whatever it is."""
    (one,) = commands(orders(), place())
    assert not RENDEZVOUS & set(one.env)


def test_one_process_on_each_of_two_nodes_is_distributed_training() -> None:
    (one,) = commands(orders(nodes=2, node=1), place())
    assert set(one.env) >= RENDEZVOUS


def test_a_single_process_is_rank_0_to_the_checkpoint_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RENDEZVOUS:
        monkeypatch.delenv(name, raising=False)
    around = surroundings.look()
    assert (around.rank, around.world, surroundings.rank()) == (0, 1, 0)


def test_torchrun_starts_the_ranks_itself() -> None:
    (one,) = commands(orders(nodes=2, node=1, launcher="torchrun"), place(processes=4))
    assert one.launches
    assert one.rank == 4
    assert one.argv[:5] == ("/venv/bin/python", "-m", "torch.distributed.run", "--nproc-per-node", "4")
    assert one.argv[5:9] == ("--nnodes", "2", "--node-rank", "1")
    assert one.argv[-4:] == ("--no-python", "/bin/sh", "-c", "exec python train.py")
    assert "RANK" not in one.env


def test_mpi_starts_the_ranks_itself() -> None:
    (one,) = commands(orders(launcher="mpi"), place(processes=4))
    assert one.argv == ("mpirun", "-np", "4", "/bin/sh", "-c", "exec python train.py")
    assert one.launches


def test_references_are_filled_in_and_quoted() -> None:
    given = orders("t ${data.images} -o ${outputs} -c ${checkpoints} ${HOME}", data={"images": "/my data/it's"})
    assert command_line(given, FOLDER) == (
        """exec t '/my data/it'"'"'s' -o /node/work/outputs -c /node/work/checkpoints ${HOME}"""
    )


@pytest.mark.parametrize("line", ["python -m train --lr 0.1 'a b' \"$X\" ${HOME}", "./train.sh", "/opt/tool\t-x"])
def test_a_single_command_takes_the_place_of_its_shell(line: str) -> None:
    assert command_line(orders(line), FOLDER) == f"exec {line}"


@pytest.mark.parametrize(
    "line",
    [
        "a; b",
        "a && b",
        "a | b",
        "a > b",
        "a &",
        "a\nb",
        "(a)",
        "echo $(a)",
        "X=1 a",
        "exit 3",
        "cd a",
        "'a b' c",
        "a `b`",
    ],
)
def test_any_other_line_is_left_to_the_shell(line: str) -> None:
    assert command_line(orders(line), FOLDER) == line


def test_the_first_checkpoint_folder_is_the_one_that_is_named() -> None:
    given = orders("t ${checkpoints}", checkpoints=["ck/a", "b"])
    assert command_line(given, FOLDER) == "exec t /node/work/ck/a"
    assert environment(given, place())["STOKER_CHECKPOINTS"] == "/node/work/ck/a"


def test_a_script_learns_its_eviction_rate_once_it_was_measured() -> None:
    told = environment(replace(orders(), evictions_per_hour=0.775), place())
    assert told["STOKER_EVICTIONS_PER_HOUR"] == "0.775"
    assert "STOKER_EVICTIONS_PER_HOUR" not in environment(orders(), place())


def test_a_script_finds_where_everything_is() -> None:
    env = environment(orders(data={"images": "/data/images"}), place())
    assert {name: value for name, value in env.items() if name.startswith("STOKER_")} == {
        "STOKER_RUN": "ants-1",
        "STOKER_ATTEMPT": "2",
        "STOKER_OUTPUTS": "/node/work/outputs",
        "STOKER_CHECKPOINTS": "/node/work/checkpoints",
        "STOKER_DATA_IMAGES": "/data/images",
        "STOKER_METRICS": "/node/metrics.jsonl",
        "STOKER_NOTICE": "/node/notice",
        "STOKER_STOP": "/node/stop",
        "STOKER_FINISHED": "/node/finished",
        "STOKER_TOLL": "/node/toll",
        "STOKER_NODE_KEY": "key-1",
    }


@pytest.mark.parametrize("name", ["HOME", "LC_ALL", "https_proxy", "NO_PROXY", "UV_INDEX_URL", "CUDA_HOME", "TZ"])
def test_useful_variables_are_inherited(name: str) -> None:
    assert environment(orders(), place(**{name: "x"}))[name] == "x"


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "HF_TOKEN", "HOMELY", "MY_PATH", "LD_PRELOAD"]
)
def test_other_variables_are_not_inherited(name: str) -> None:
    assert name not in environment(orders(), place(**{name: "x"}))


def test_the_environment_comes_first_in_the_path() -> None:
    env = environment(orders(), place(PATH="/usr/bin:/bin"))
    assert env["PATH"] == "/venv/bin:/usr/bin:/bin"
    assert env["VIRTUAL_ENV"] == "/venv"
    assert env["PYTHONUNBUFFERED"] == "1"


def test_stoker_comes_last_on_the_python_path() -> None:
    assert environment(orders(), place())["PYTHONPATH"] == "/a.pyz"
    assert environment(orders(), place(PYTHONPATH="/mine"))["PYTHONPATH"] == "/mine:/a.pyz"
    assert environment(orders(env={"PYTHONPATH": "lib"}), place(PYTHONPATH="/mine"))["PYTHONPATH"] == "lib:/a.pyz"
    hooked = environment(orders(exact=True), place(PYTHONPATH="/mine"))["PYTHONPATH"]
    assert hooked == "/a.pyz/stoker/checkpoint/exact/startup:/mine:/a.pyz"


def test_the_jobs_own_variables_win() -> None:
    (one,) = commands(orders(env={"PYTHONUNBUFFERED": "0", "MASTER_PORT": "1234"}), place())
    assert (one.env["PYTHONUNBUFFERED"], one.env["MASTER_PORT"]) == ("0", "1234")


def test_secrets_come_from_the_agents_own_environment() -> None:
    env = environment(orders(secrets=["HF_TOKEN", "ABSENT"]), place(HF_TOKEN="s3cret", OTHER="no"))
    assert env["HF_TOKEN"] == "s3cret"
    assert "ABSENT" not in env
    assert "OTHER" not in env
