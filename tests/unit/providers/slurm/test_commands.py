"""Slurm's commands as text, and what they print as data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker.errors import JobInvalid, NotAllowed, ProviderFailed, ProviderUnavailable
from stoker.model.node import Need, Pool
from stoker.providers.slurm import commands
from stoker.providers.slurm.commands import AllocatedNode, Partition, SlurmJob, Wanted, lead_s, seconds, wanted
from stoker.providers.slurm.controller import refusal


def asked(**settings: str) -> Wanted:
    return wanted(Need(pool=Pool("hpc", settings)))


def test_an_allocation_has_the_nodes_of_the_attempt_and_is_never_requeued() -> None:
    words = commands.sbatch(
        "ants-1.k", "/home/me/k", 3, asked(partition="gpu", account="lab", time="4h"), 120, "stoker a"
    )
    assert words[0] == "sbatch"
    assert {"--nodes=3", "--ntasks-per-node=1", "--no-requeue", "--signal=B:USR1@120"} <= set(words)
    assert {"--partition=gpu", "--account=lab", "--time=240", "--job-name=ants-1.k", "--chdir=/home/me/k"} <= set(words)


def test_what_a_job_needs_of_a_node_is_asked_of_slurm() -> None:
    one = wanted(Need(cpus=8, memory_gb=31.5, gpus=2, gpu="A100", pool=Pool("hpc", {"gres": "gpu:1,tmpdisk:10"})))
    assert one.options() == ["--gres=gpu:a100:2,tmpdisk:10", "--cpus-per-task=8", "--mem=31500M"]


def test_the_size_of_a_job_is_its_partition() -> None:
    assert wanted(Need(size="long", pool=Pool("hpc", {"partition": "main"}))).partition == "long"


def test_a_setting_that_slurm_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(JobInvalid) as refused:
        asked(acount="lab")
    (problem,) = refused.value.problems
    assert problem.nearest == "account"


@pytest.mark.parametrize("value", ["--wrap=rm", "a b", "$(id)", "x;y", ""])
def test_a_setting_cannot_smuggle_an_option_or_a_command(value: str) -> None:
    with pytest.raises(JobInvalid):
        asked(partition=value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4h", 14400),
        ("1d12h", 129600),
        ("90s", 90),
        ("90", 5400),
        ("90:30", 5430),
        ("4:00:00", 14400),
        ("1-12", 129600),
    ],
)
def test_a_time_is_read_as_ours_and_as_slurms(text: str, found: int) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["", "0", "soon", "-5", "1h-2"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(JobInvalid):
        seconds(text)


def test_a_short_time_limit_keeps_most_of_it_for_work() -> None:
    assert [lead_s(one) for one in (60, 480, 86400, 0)] == [15, 120, 120, 120]


def test_partitions_have_the_limit_of_a_job_that_names_no_time() -> None:
    printed = "main*|n/a|1-00:00:00\nshort|10:00|1:00:00\nlong|n/a|infinite\n"
    assert commands.partitions(printed) == [
        Partition("main", 86400.0, is_default=True),
        Partition("short", 600.0),
        Partition("long", 0.0),
    ]


def test_the_queue_is_read_as_jobs_whatever_their_names() -> None:
    printed = "17|RUNNING|None|ants-1.k-1\n18|PENDING|Priority|a|b\nslurm_load: a warning\n\n"
    assert commands.jobs(printed) == [
        SlurmJob("17", "RUNNING", "None", "ants-1.k-1"),
        SlurmJob("18", "PENDING", "Priority", "a|b"),
    ]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "Slurm job 7 ended as TIMEOUT: it reached its time limit"),
        ("PREEMPTED", "Slurm job 7 ended as PREEMPTED: a job of higher priority preempted it"),
        ("CANCELLED by 0", "Slurm job 7 ended as CANCELLED by 0: somebody cancelled it with scancel"),
        ("NODE_FAIL", "Slurm job 7 ended as NODE_FAIL: one of its nodes failed"),
        ("OUT_OF_MEMORY", "Slurm job 7 ended as OUT_OF_MEMORY: it used more memory than it was allocated"),
        ("FAILED", "Slurm job 7 ended as FAILED (NonZeroExitCode)"),
    ],
)
def test_how_a_job_ended_is_told_in_words_of_slurm(state: str, words: str) -> None:
    reason = "NonZeroExitCode" if state == "FAILED" else "None"
    assert commands.ended(SlurmJob("7", state, reason, "ants")) == words


@pytest.mark.parametrize(("printed", "id"), [("17\n", "17"), ("17;hpc\n", "17"), ("note\n17\n", "17"), ("no\n", "")])
def test_the_id_of_a_submitted_job_is_found(printed: str, id: str) -> None:
    assert commands.submitted(printed) == id


def test_a_step_is_found_by_the_name_of_its_node() -> None:
    printed = "17.0|k-1\n17.1|k-1-1\n17.batch|batch\n"
    assert (commands.step_named(printed, "k-1-1"), commands.step_named(printed, "k-9")) == ("17.1", "")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            ProviderUnavailable,
        ),
        ("squeue: error: Socket timed out on send/recv operation", ProviderUnavailable),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            NotAllowed,
        ),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", ProviderFailed),
    ],
)
def test_a_refusal_says_whether_it_passes_by_itself(said: str, kind: type[ProviderFailed]) -> None:
    error = refusal("sbatch", said)
    assert type(error) is kind
    assert said.rpartition(": ")[2] in error.message


class TestScript:
    """The batch script, with a `srun` that only tells what it was given."""

    def run(self, folder: Path, job: str = "17") -> str:
        tool = folder / "bin" / "srun"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text('#!/bin/sh\necho "$STOKER_NODE_KEY:$STOKER_SEAL:$STOKER_SEAL_0$STOKER_SEAL_1:$*"\n')
        tool.chmod(0o755)
        nodes = [AllocatedNode(f"k-{one}", ("agent", "a b"), {"STOKER_SEAL": f"STOKER_SEAL_{one}"}) for one in range(2)]
        text = commands.script(str(folder / "it's here"), nodes)
        variables = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": job}
        variables |= {"STOKER_SEAL_0": "secret0", "STOKER_SEAL_1": "secret1", "SLURM_CPUS_PER_TASK": "4"}
        done = subprocess.run(["sh"], input=text, env=variables, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    def test_each_node_gets_a_step_with_its_own_settings_and_no_others(self, tmp_path: Path) -> None:
        (tmp_path / "it's here").mkdir()
        lines = sorted(self.run(tmp_path).splitlines())
        assert [line.split(":")[:3] for line in lines] == [["", "secret0", ""], ["", "secret1", ""]]
        assert "--relative=1" in lines[1]
        assert lines[1].endswith("--cpus-per-task=4 env STOKER_NODE_KEY=k-1 agent a b")
        assert {one.name for one in (tmp_path / "it's here").iterdir()} == {"claim", "ended.0", "ended.1"}

    def test_without_its_folder_it_ends_at_once(self, tmp_path: Path) -> None:
        assert self.run(tmp_path) == ""

    def test_only_the_first_of_two_allocations_works(self, tmp_path: Path) -> None:
        (tmp_path / "it's here").mkdir()
        assert self.run(tmp_path, "17")
        assert self.run(tmp_path, "18") == ""
