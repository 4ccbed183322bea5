from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.client.importing.slurm import translated
from stoker.client.importing.translation import Translation
from stoker.client.submit import jobfile
from stoker.errors import JobInvalid
from stoker.model.job.job import Job

FILES = Path(__file__).parent / "slurm"

# What the job of each script has, and the lines that are listed as without a counterpart.
EXPECTED: dict[str, tuple[dict[str, Any], set[int]]] = {
    "array_sweep.sbatch": (
        {"name": "lr-sweep", "max_parallel": 4, "time_limit": 4 * 3600, "cpus": 8, "memory": 32, "on": "slurm"},
        {7},
    ),
    "array_listed.sh": ({"name": "ants", "time_limit": 5400, "cpus": 4}, set()),
    "ddp_srun_torchrun.sbatch": (
        {
            "run": "python train.py --batch 64",
            "nodes": 4,
            "processes": 8,
            "launcher": "torchrun",
            "gpus": 8,
            "gpu": "a100",
            "time_limit": 2 * 86400,
            "on": "hpc",
            "size": None,
            "env": {"NCCL_DEBUG": "INFO"},
        },
        {9, 11, 13, 14, 15},
    ),
    "srun_ranks.sbatch": (
        {"run": "python train.py --rank ${RANK}", "nodes": 2, "processes": 4, "launcher": "auto", "gpus": 4}
        | {"gpu": "v100", "cpus": 24, "memory": 96, "on": "hpc", "env": {}},
        {8, 9, 11, 12},
    ),
    "mpirun.slurm": (
        {"run": "python -m train.mpi --steps 500", "nodes": 4, "processes": 4, "launcher": "mpi", "time_limit": 1800},
        {5, 6, 7, 8},
    ),
    "conda_single_gpu.sbatch": (
        {"name": "resnet50-train", "run": "python train.py --out results", "gpus": 1, "memory": 16, "time_limit": None}
        | {"env": {"OMP_NUM_THREADS": "4"}, "secrets": ("WANDB_API_KEY",)},
        {5, 6, 7, 8, 9, 11},
    ),
    "venv_chdir.sbatch": (
        {"source": "/shared/project", "gpus": 2, "env": {"LR": "0.1"}, "run": "python train.py --lr $LR"},
        {3, 4},
    ),
    "bash_logic.sbatch": ({"time_limit": 86400 + 12 * 3600 + 30 * 60 + 15, "memory": None, "on": "slurm"}, {4, 11}),
    "container_pyxis.sbatch": ({"nodes": 2, "processes": 4, "gpus": 4, "run": "python train.py"}, {5, 6}),
    "several_steps.sbatch": ({"processes": 2, "gpus": 2, "memory": 80, "on": "hpc"}, {3, 4, 9}),
}


def of_text(text: str, file: str = "train.sbatch") -> tuple[Job, Translation]:
    found = translated(text, file)
    return jobfile.read_text(found.text(), Path("stoker.yaml")).job, found


def script(*options: str, command: str = "python train.py") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {one}" for one in options), command, ""])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_script_becomes_a_job(name: str) -> None:
    wanted, lines = EXPECTED[name]
    job, found = of_text((FILES / name).read_text(encoding="utf-8"), name)
    assert {field: getattr(job, field) for field in wanted} == wanted
    assert {one.line for one in found.unmapped} == lines


def test_every_script_is_expected() -> None:
    assert {path.name for path in FILES.iterdir()} == set(EXPECTED)


def test_an_array_becomes_a_matrix_whose_trials_know_their_task() -> None:
    job, _ = of_text((FILES / "array_listed.sh").read_text(encoding="utf-8"))
    assert job.matrix and [one["task"] for one in job.matrix.trials()] == ["1", "3", "5", "6", "7"]
    assert job.env == {"SLURM_ARRAY_TASK_ID": "${matrix.task}"}
    assert job.run.endswith("python train.py --lr $lr")


@pytest.mark.parametrize(
    ("array", "tasks"),
    [("4", ["4"]), ("0-3", ["0", "1", "2", "3"]), ("0-9:4", ["0", "4", "8"]), ("1,7-8%1", list("178"))],
)
def test_every_form_of_an_array(array: str, tasks: list[str]) -> None:
    job, _ = of_text(script(f"--array={array}"))
    assert job.matrix and [one["task"] for one in job.matrix.trials()] == tasks


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("90:30", 5430), ("1:00:00", 3600), ("1-12", 129600), ("1-12:30", 131400), ("2-00:00:05", 172805)],
)
def test_every_form_of_a_time(time: str, seconds: int) -> None:
    assert of_text(script(f"--time={time}"))[0].time_limit == seconds


@pytest.mark.parametrize("option", ["-N 2", "-N2", "--nodes 2", "--nodes=2", "--nodes=2  # two of them", '--nodes="2"'])
def test_every_form_of_an_option(option: str) -> None:
    assert of_text(script(option, command="srun python train.py"))[0].nodes == 2


@pytest.mark.parametrize(
    "line", ["torchrun", "python -m torch.distributed.run", "srun torchrun", "srun -n2 -N2 torchrun"]
)
def test_torchrun_is_the_launcher_of_the_job(line: str) -> None:
    job, _ = of_text(script("-N2", "--gpus=8", command=f"{line} --nproc-per-node=gpu -m pkg.train --x 'a b'"))
    assert (job.launcher, job.processes, job.nodes, job.gpus) == ("torchrun", "gpus", 2, 4)
    assert job.run == "python -m pkg.train --x 'a b'"


def test_a_cluster_is_made_for_what_only_a_cluster_has() -> None:
    found = translated((FILES / "ddp_srun_torchrun.sbatch").read_text(encoding="utf-8"), "x")
    words = found.notes[0].split()
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--setting"]
    assert settings == ["partition=gpu", "account=vision", "qos=long"]
    assert found.notes[0] in found.text().split("# ", 2)[2]


def test_a_script_for_bash_stays_one() -> None:
    job, _ = of_text((FILES / "bash_logic.sbatch").read_text(encoding="utf-8"))
    assert job.run.startswith("bash -c 'set -euo pipefail\nif [[ -f last.pt ]]")
    assert "  python train.py $extra" not in job.run and job.run.endswith("python train.py $extra'")


def test_the_value_of_a_secret_is_not_copied() -> None:
    assert "not-for-the-file" not in of_text((FILES / "conda_single_gpu.sbatch").read_text(encoding="utf-8"))[1].text()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_unknown_option_is_listed(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8").replace("\n", "\n#SBATCH --frobnicate=7\n", 1)
    found = translated(text, name)
    assert [one.line for one in found.unmapped if "--frobnicate=7" in one.what] == [2]


def test_an_srun_that_stays_is_listed() -> None:
    found = translated(script(command="for x in 1 2; do srun python train.py $x; done"), "x")
    assert [one.line for one in found.unmapped] == [2]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("#!/bin/bash\n", 2),
        (script("--time=soon"), 2),
        (script("--nodes=1", "--nodes=4-2"), 3),
        (script("--nodes"), 2),
        (script("--array=9-0"), 2),
        (script("--array=0-9%0"), 2),
        (script("--mem=lots"), 2),
        (script("--gres=gpu:a100:many"), 2),
        (script("--ntasks=0"), 2),
        (script("--job-name='open"), 2),
        (script("hetjob"), 2),
        (script("gpu"), 2),
        (script("--export=1A=2"), 2),
        ("#!/bin/bash\npython \0", 2),
    ],
)
def test_a_wrong_script_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(JobInvalid) as refused:
        of_text(text, "wrong.sbatch")
    assert refused.value.file == "wrong.sbatch"
    assert [one.line for one in refused.value.problems] == [line]


WORDS = st.sampled_from(
    [
        "#SBATCH",
        "--nodes=2",
        "-N",
        "--array=0-3%2",
        "--gres=gpu:2",
        "--time",
        "1-2:3",
        "\n",
        " ",
        "'",
        '"',
        "\\\n",
        "srun",
        "torchrun",
        "--nproc_per_node",
        "mpirun -np",
        "${lr}",
        "${outputs}",
        "$(",
        "<<END\n",
        "export A=",
        "cd /x",
        "if [[",
        "é",
        "python train.py",
        "conda activate x",
        "module load",
        "--mem-per-cpu=2G",
        "--export=A=1,B",
        "-c4",
        "--",
        "0",
        "%",
        "\t",
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=30))
@settings(max_examples=300, deadline=None)
def test_nonsense_becomes_a_job_or_is_refused_with_a_line(parts: list[str]) -> None:
    text = "#!/bin/bash\n" + "".join(parts)
    try:
        found = translated(text, "x.sbatch")
        written = found.text()
    except JobInvalid as refused:
        assert refused.file == "x.sbatch" and all(one.line > 0 for one in refused.problems)
        return
    assert yaml.safe_load(written)["run"] == found.values["run"]
    known = text.count("\n") + 1
    assert all(0 < one.line <= known and not re.search(r"[^ -~]", one.what) for one in found.unmapped)
