"""What the provider makes of answers that a controller in trouble gives, with programs that print what a test says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.model.node import Need, NodeRequest, NodeState
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.allocations import Allocation, Allocations
from stoker.providers.slurm import SlurmProvider
from stoker.providers.slurm.commands import environment

FORGOTTEN = "[ \"$2\" = config ] && exit 0; echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


class Tools:
    """Each program is a line of shell; what each was called with is kept."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._calls = folder / "bin", folder / "calls"
        self._bin.mkdir()
        self._calls.mkdir()
        for name, line in {"sinfo": "echo 'main*|n/a|1:00:00'", "scancel": "", "sacct": "exit 1"}.items():
            self.say(name, line)
        self.say("scontrol", FORGOTTEN)

    def say(self, name: str, line: str) -> None:
        tool = self._bin / name
        note = f'echo "$*" >> {self._calls / name}; env > {self._calls / name}.env'
        tool.write_text(f"#!/bin/sh\n{note}\n{line}\n")
        tool.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self._calls / name
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, name: str) -> str:
        return (self._calls / f"{name}.env").read_text()


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    made = Tools(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        yield made


@pytest.fixture
def provider(tmp_path: Path, tools: Tools) -> SlurmProvider:
    assert tools
    return SlurmProvider(Setup(Home(tmp_path / "home")))


def remembered(folder: Path, **more: object) -> Path:
    """An allocation of an earlier server; returns its folder."""
    top = folder / "home" / "slurm"
    Allocations(top / "records").keep(Allocation("k-1", "ants-1.k-1", ("k-1",), **more))  # type: ignore[arg-type]
    place = top / "allocations" / "k-1"
    place.mkdir(parents=True)
    return place


def test_of_two_jobs_of_one_name_the_one_that_works_counts(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    """As when the controller was killed after it had taken a job, and before it said so."""
    (remembered(tmp_path, job="18") / "claim").write_text("17\n")
    tools.say("squeue", "echo '17|RUNNING|None|ants-1.k-1'; echo '18|COMPLETED|None|ants-1.k-1'")
    assert [(one.key, one.state) for one in provider.look()] == [("k-1", NodeState.UP)]


def test_a_stop_cancels_every_job_of_its_name(provider: SlurmProvider, tools: Tools, tmp_path: Path) -> None:
    remembered(tmp_path, job="17")
    over = tmp_path / "over"
    tools.say("squeue", f'[ -e {over} ] || for id in 17 18; do echo "$id|PENDING|Priority|ants-1.k-1"; done')
    tools.say("scancel", f'[ "$*" != 18 ] || : > {over}')
    provider.stop("k-1")
    assert {"17", "18"} <= set(tools.calls("scancel"))
    assert provider.look() == []


def test_a_list_without_a_job_is_no_proof_that_it_is_gone(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    remembered(tmp_path, job="17")
    tools.say("squeue", "echo 'maintenance today: have a nice day'")
    tools.say("scontrol", "echo 'maintenance today: have a nice day'")
    with pytest.raises(ProviderUnavailable):
        provider.look()
    tools.say("scontrol", "echo 'JobId=17 JobName=ants-1.k-1 JobState=RUNNING Reason=None'")
    assert [one.state for one in provider.look()] == [NodeState.UP]
    tools.say("scontrol", FORGOTTEN)
    (sight,) = provider.look()
    assert (sight.state, sight.reason) == (NodeState.GONE, "Slurm has no job 17 any more, and no account of it")


def test_a_job_that_was_requeued_is_told_as_that_and_does_not_work_again(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    (remembered(tmp_path, job="17") / "claim").write_text("17\n")
    tools.say("squeue", "echo '17|PENDING|BeginTime|ants-1.k-1'")
    (sight,) = provider.look()
    assert (sight.state, sight.taken) == (NodeState.GONE, True)
    assert "requeued by an administrator" in sight.reason


def test_a_job_whose_script_never_began_says_where_to_look(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    place = remembered(tmp_path, job="17")
    tools.say("squeue", "echo '17|FAILED|NonZeroExitCode|ants-1.k-1'")
    (sight,) = provider.look()
    assert f"can the node write to {place}, and do the nodes share it?" in sight.reason


def test_no_secret_is_in_the_command_or_the_environment_of_sbatch(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    tools.say("sbatch", f"cat > {tmp_path / 'script'}; echo 17")
    provider.start(
        NodeRequest("k-1", "o", "file:///s", need=Need(), secrets={"HF_TOKEN": "it's hidden"}, access="token-17")
    )
    told = [*tools.calls("sbatch"), tools.environment("sbatch"), (tmp_path / "script").read_text()]
    assert not any(word in text for text in told for word in ("it's hidden", "token-17"))
    given = tmp_path / "home" / "slurm" / "allocations" / "k-1" / "given"
    assert "token-17" in given.read_text()
    assert given.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("line", ["echo welcome", "exit 0", "echo 'error: Socket timed out' >&2; exit 1"])
def test_a_job_that_may_have_been_submitted_is_looked_for_before_it_is_submitted_again(
    provider: SlurmProvider, tools: Tools, line: str
) -> None:
    tools.say("sbatch", line)
    request = NodeRequest("k-1", "o", "file:///s", need=Need())
    with pytest.raises(ProviderUnavailable):
        provider.start(request)
    tools.say("squeue", 'echo "17|PENDING|Priority|stoker.$(echo "$*" | sed "s/.*--name=stoker.//")"')
    provider.start(request)
    assert len(tools.calls("sbatch")) == 1


def test_many_runs_cost_one_request_to_look_at(provider: SlurmProvider, tools: Tools, tmp_path: Path) -> None:
    kept = Allocations(tmp_path / "home" / "slurm" / "records")
    for number in range(200):
        kept.keep(Allocation(f"k-{number}", f"ants.k-{number}", (f"k-{number}",), job=str(number)))
    tools.say("squeue", 'for id in $(seq 0 199); do echo "$id|RUNNING|None|ants.k-$id"; done')
    assert {one.state for one in provider.look()} == {NodeState.UP}
    assert len(tools.calls("squeue")) == 1
    assert tools.calls("scontrol") + tools.calls("sacct") == []


def test_jobs_are_listed_by_the_number_of_the_user_and_in_hidden_partitions(
    provider: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    remembered(tmp_path, job="17")
    tools.say("squeue", "echo '17|RUNNING|None|ants-1.k-1'")
    provider.look()
    (words,) = tools.calls("squeue")
    assert {"--all", f"--user={os.getuid()}"} <= set(words.split())


def test_the_allocation_in_which_the_server_was_started_is_not_told_to_slurm() -> None:
    given = {"SLURM_CONF": "/c", "SLURM_JOB_ID": "3", "SLURM_CPUS_PER_TASK": "9", "SQUEUE_PARTITION": "x", "HOME": "/h"}
    given |= {"SBATCH_ACCOUNT": "lab", "SBATCH_ARRAY_INX": "0-9", "SBATCH_WAIT": "1"}
    assert environment(given) == {"SLURM_CONF": "/c", "HOME": "/h", "SBATCH_ACCOUNT": "lab"}


def test_a_record_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    records = Allocations(tmp_path)
    records.keep(Allocation("a", "n", ("a", "b")))
    (tmp_path / "z.json").write_text(json.dumps([1]))
    assert [one.key for one in records.all()] == ["a"]
    records.keep(Allocation("a", "n", ("a", "b"), job="7"))
    assert [one.job for one in records.all()] == ["7"]


# A login node, behind a program that is called as ssh and runs what it is given here.


@pytest.fixture
def login(tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch) -> SlurmProvider:
    tools.say("ssh", f'for last; do :; done; HOME={tmp_path / "there"} exec sh -c "$last"')
    tools.say("squeue", "")
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("STOKER_SLURM_LOGIN", "me@login")
    return SlurmProvider(Setup(Home(tmp_path / "home")))


def test_a_job_through_a_login_node_has_its_folder_and_its_secrets_there(
    login: SlurmProvider, tools: Tools, tmp_path: Path
) -> None:
    tools.say("sbatch", "cat > /dev/null; echo 17")
    login.start(NodeRequest("k-1", "o", "https://store", need=Need(), secrets={"HF_TOKEN": "hidden-17"}))
    (given,) = (tmp_path / "there").glob(".stoker-slurm/*/allocations/k-1/given")
    assert "hidden-17" in given.read_text()
    assert given.stat().st_mode & 0o077 == 0
    assert not any("hidden-17" in line for line in tools.calls("ssh"))
    tools.say("squeue", "echo '17|RUNNING|None|stoker.x-k-1'")
    assert not list((tmp_path / "home" / "slurm").rglob("given"))


def test_a_login_node_without_a_python_or_without_slurm_is_told_as_that(login: SlurmProvider, tools: Tools) -> None:
    request = NodeRequest("k-1", "o", "https://store", need=Need())
    for minor in ("", *(f".{number}" for number in range(10, 15))):
        tools.say(f"python3{minor}", 'echo "Python 3.6.8"; exit 1')
    with pytest.raises(NotSetUp, match=r"3\.6\.8"):
        login.start(request)
    tools.say("ssh", "printf 'welcome\\nstoker-login\\n/home/me\\n/usr/bin/python3\\nPython 3.11.2\\n\\n'")
    with pytest.raises(NotSetUp, match="no sbatch"):
        login.start(request)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("ssh: connect to host login port 22: Connection timed out", ProviderUnavailable),
        ("me@login: Permission denied (publickey).", ProviderFailed),
    ],
)
def test_a_login_node_that_ssh_does_not_reach_is_told_in_its_words(
    login: SlurmProvider, tools: Tools, said: str, error: type[ProviderFailed]
) -> None:
    tools.say("ssh", f"echo '{said}' >&2; exit 255")
    with pytest.raises(error, match="me@login"):
        login.offers(Need())
