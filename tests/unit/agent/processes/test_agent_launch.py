"""Which processes a node starts, and with what in their environment: no process is started here."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.launch import RemoteStart, Workplace, command_line, environment, free_ports
from stoker.agent.processes.launchers import commands
from stoker.checkpoint import surroundings
from stoker.model.job.job import DataInput, Job, Launcher
from stoker.model.orders import Orders

FOLDER = NodeFolder(Path("/node"))


def orders(run: str = "python train.py", *, nodes: int = 1, node: int = 0, data: Any = None, **job: Any) -> Orders:
    one = Job(name="ants", run=run, data={name: DataInput(path=path) for name, path in (data or {}).items()}, **job)
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
    assert one.argv[-3:] == ("--no-python", "/bin/sh", "/node/launch/rank")
    assert one.ranks == (4, 5, 6, 7)
    assert one.files["rank"].endswith("exec /bin/sh -c 'exec python train.py'\n")
    assert "RANK" not in one.env


def test_mpi_starts_the_ranks_itself() -> None:
    (one,) = commands(orders(launcher="mpi"), place(processes=4))
    assert one.argv[:5] == ("mpirun", "--hostfile", "/node/launch/hosts", "-np", "4")
    assert one.files["hosts"] == "localhost slots=4\n"
    assert one.ranks == (0, 1, 2, 3) and "remote" not in one.files


def test_the_secret_of_the_remote_shell_is_in_a_file_and_on_no_command_line() -> None:
    there = RemoteStart({1: ("10.0.0.5", 7000)}, "very secret")
    (one,) = commands(orders(nodes=2, launcher="mpi"), replace(place(processes=2), remote=there))
    assert one.files["hosts"] == "localhost slots=2\nstoker-node-1 slots=2\n"
    assert json.loads(one.files["peers.json"])["hosts"] == {"stoker-node-1": ["10.0.0.5", 7000]}
    told = [*one.argv, *one.env.values(), one.files["remote"], repr(one)]
    assert not [text for text in told if "very secret" in text]


def test_another_node_runs_what_mpirun_asks_for_and_tells_it_the_exit_code() -> None:
    asked = RemoteStart(command="orted --here", line=7)
    (one,) = commands(orders(nodes=2, node=1, launcher="mpi"), replace(place(processes=2), remote=asked))
    assert one.argv == ("/bin/sh", "-c", "orted --here; code=$?; echo $code >&3; exit $code")
    assert (one.line, one.ranks) == (7, (2, 3))


def test_a_rank_of_mpi_gets_the_variables_of_plain_ranks_unless_the_job_sets_them() -> None:
    (one,) = commands(orders(nodes=2, node=1, launcher="mpi", env={"MASTER_PORT": "9"}), place(processes=2))
    lines = one.files["rank"].splitlines()
    assert 'export RANK="$OMPI_COMM_WORLD_RANK"' in lines and "export NODE_RANK=1" in lines
    assert not [line for line in lines if "MASTER_PORT" in line]


def test_tensorflow_is_told_where_all_workers_are_and_which_one_this_is() -> None:
    known = replace(place(processes=2), workers=("a:1", "a:2", "b:1", "b:2"))
    told = [json.loads(one.env["TF_CONFIG"]) for one in commands(orders(nodes=2, node=1), known)]
    assert [one["task"] for one in told] == [{"type": "worker", "index": 2}, {"type": "worker", "index": 3}]
    assert told[0]["cluster"] == {"worker": ["a:1", "a:2", "b:1", "b:2"]}


def test_gloo_listens_where_the_nodes_reach_each_other_unless_somebody_says_where() -> None:
    met = replace(place(), interface="eth1")
    (one,) = commands(orders(nodes=2, node=1), met)
    assert one.env["GLOO_SOCKET_IFNAME"] == "eth1"
    (one,) = commands(orders(nodes=2, node=1, env={"GLOO_SOCKET_IFNAME": "ib0"}), met)
    assert one.env["GLOO_SOCKET_IFNAME"] == "ib0"


def test_torchrun_with_restarts_meets_by_its_elastic_rendezvous() -> None:
    given = orders(nodes=2, node=1, launcher="torchrun", env={"PET_MAX_RESTARTS": "3"})
    met = replace(place(processes=2), workers=("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3", "10.0.0.2:4"))
    (one,) = commands(given, met)
    words = " ".join(one.argv)
    assert "--local-addr 10.0.0.2" in words, "its own name may not be known to its peers"
    assert one.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "--rdzv-backend c10d" in words and f"--rdzv-endpoint 10.0.0.1:{place().port}" in words
    assert "--node-rank" not in words


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


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ("models/20000-G.ckpt", " --resume_iters 20000"),
        ("models/resnet50_epoch_007.pt", " --resume_iters 7"),
        ("models/checkpoint-500", " --resume_iters 500"),
        ("models/last.pt", ""),
        ("", ""),
    ],
)
def test_a_script_that_resumes_by_a_number_gets_that_of_its_newest_checkpoint(newest: str, expected: str) -> None:
    given = orders("python t.py", resume="--resume_iters ${checkpoint.number}")
    assert command_line(given, FOLDER, newest) == f"exec python t.py{expected}"


@pytest.mark.parametrize(
    ("resume", "newest", "expected"),
    [
        ("ckpt_path=${checkpoint.newest}", "ck/epoch=3.ckpt", ["""ckpt_path="/node/work/ck/epoch=3.ckpt\""""]),
        ("+ckpt_path=${checkpoint.newest}", "ck/epoch=3.ckpt", ["""+ckpt_path="/node/work/ck/epoch=3.ckpt\""""]),
        ("ckpt_path=${checkpoint.newest}", "ck/last.ckpt", ["ckpt_path=/node/work/ck/last.ckpt"]),
        ("--ckpt_path=${checkpoint.newest}", "ck/epoch=3.ckpt", ["--ckpt_path=/node/work/ck/epoch=3.ckpt"]),
    ],
)
def test_a_name_with_an_equals_sign_is_a_quoted_text_in_a_pair(resume: str, newest: str, expected: list[str]) -> None:
    line = command_line(orders("python t.py", resume=resume), FOLDER, newest)
    assert shlex.split(line.removeprefix("exec python t.py")) == expected


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
    assert environment(orders(), replace(place(), variables={name: "x"}))[name] == "x"


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "HF_TOKEN", "HOMELY", "MY_PATH", "LD_PRELOAD"]
)
def test_other_variables_are_not_inherited(name: str) -> None:
    assert name not in environment(orders(), replace(place(), variables={name: "x"}))


def test_the_environment_comes_first_in_the_path() -> None:
    env = environment(orders(), place(PATH="/usr/bin:/bin"))
    assert env["PATH"] == "/venv/bin:/usr/bin:/bin"
    assert env["VIRTUAL_ENV"] == "/venv"
    assert env["PYTHONUNBUFFERED"] == "1"


def test_stoker_comes_last_on_the_python_path_and_its_hook_first() -> None:
    hook = "/a.pyz/stoker/checkpoint/startup"
    assert environment(orders(), place())["PYTHONPATH"] == f"{hook}:/a.pyz"
    assert environment(orders(), place(PYTHONPATH="/mine"))["PYTHONPATH"] == f"{hook}:/mine:/a.pyz"
    own = environment(orders(env={"PYTHONPATH": "lib"}), place(PYTHONPATH="/mine"))
    assert own["PYTHONPATH"] == f"{hook}:lib:/a.pyz"
    assert environment(orders(hang=False), place(PYTHONPATH="/mine"))["PYTHONPATH"] == "/mine:/a.pyz"
    exact = environment(orders(exact=True), place(PYTHONPATH="/mine"))
    assert exact["PYTHONPATH"] == f"{hook}:/a.pyz/stoker/checkpoint/exact/startup:/mine:/a.pyz"


def test_the_jobs_own_variables_win() -> None:
    (one,) = commands(orders(env={"PYTHONUNBUFFERED": "0", "MASTER_PORT": "1234"}), place())
    assert (one.env["PYTHONUNBUFFERED"], one.env["MASTER_PORT"]) == ("0", "1234")


def test_secrets_come_from_the_agents_own_environment() -> None:
    env = environment(orders(secrets=["HF_TOKEN", "ABSENT"]), place(HF_TOKEN="s3cret", OTHER="no"))
    assert env["HF_TOKEN"] == "s3cret"
    assert "ABSENT" not in env
    assert "OTHER" not in env


@pytest.mark.parametrize(
    ("launcher", "processes", "found"),
    [(Launcher.AUTO, 1, 0), (Launcher.AUTO, 2, 3), (Launcher.TORCHRUN, 1, 2), (Launcher.MPI, 1, 2)],
)
def test_a_single_rank_of_a_launcher_has_a_port_to_meet_itself(launcher: Launcher, processes: int, found: int) -> None:
    here = replace(orders(launcher=launcher), master_address="127.0.0.1")
    assert len(set(free_ports(here, processes)) - {0}) == found
