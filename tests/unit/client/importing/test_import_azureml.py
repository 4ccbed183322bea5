from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.client.importing.azureml import translated
from stoker.client.importing.translation import Translation
from stoker.client.submit import jobfile
from stoker.errors import JobInvalid
from stoker.model.job.job import Job
from stoker.model.job.search import Search, SearchKind

FILES = Path(__file__).parent / "azureml"

# What each becomes, and the lines that are listed as without a counterpart.
EXPECTED: dict[str, tuple[dict[str, Any], set[int]]] = {
    "command.yml": (
        {"name": "ants", "source": "src", "on": "cpu-cluster"}
        | {"run": "python train.py --data ${data.images} --epochs 25 --out ${outputs}"},
        set(),
    ),
    "image.yml": (
        {"run": "pip list\npython train.py --lr $lr", "on": "gpu", "time_limit": 3600, "env": {"lr": "0.1"}}
        | {"secrets": ("AZURE_STORAGE_KEY",)},
        {9},
    ),
    "conda.yml": (
        {"source": ".", "run": "cd src && python train.py", "outputs": "src/outputs", "nodes": 2, "processes": 4}
        | {"launcher": "torchrun", "size": "Standard_NC6s_v3", "on": "azureml"},
        {4, 9},
    ),
    "dockerfile.yml": ({"run": "python train.py", "on": "local", "launcher": "mpi", "processes": 4}, {7}),
    "mpi.yml": (
        {"launcher": "mpi", "processes": 8, "nodes": 4, "priority": "high", "on": "big"}
        | {"run": "mkdir -p ${outputs}/a ${outputs}/b && python train.py --a ${outputs}/a --b ${outputs}/b"},
        {3, 5, 8},
    ),
    "tensorflow.yml": ({"nodes": 3, "launcher": "auto", "on": "tf"}, {2, 4}),
    "optional_inputs.yml": (
        {"name": "opt-in", "run": "python train.py --lr 0.01  --csv ${data.table} --raw ${data.raw}"},
        {2, 8},
    ),
    "sweep_random.yml": ({"max_parallel": 4, "time_limit": 600, "source": "src"}, {10, 11, 12, 13}),
    "sweep_grid.yml": ({"max_parallel": None, "env": {"SEED": "1"}}, set()),
    "sweep_bayesian.yml": ({"nodes": 2, "search": Search(by=SearchKind.OPTUNA, metric="-loss")}, {4}),
}


def of_text(text: str, file: str = "job.yml", folder: str = ".") -> tuple[Job, Translation]:
    found = translated(text, file, folder)
    return jobfile.read_text(found.text(), Path("stoker.yaml")).job, found


def of_file(name: str) -> tuple[Job, Translation]:
    return of_text((FILES / name).read_text(encoding="utf-8"), name)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_job_of_azure_ml_becomes_a_job(name: str) -> None:
    wanted, lines = EXPECTED[name]
    job, found = of_file(name)
    assert {field: getattr(job, field) for field in wanted} == wanted
    assert {one.line for one in found.unmapped} == lines


def test_every_file_is_expected() -> None:
    assert {path.name for path in FILES.iterdir()} == set(EXPECTED)


def test_a_search_space_becomes_a_matrix_with_as_many_trials() -> None:
    matrices = {name: of_file(f"sweep_{name}.yml")[0].matrix for name in ("random", "grid", "bayesian")}
    assert {name: one.size for name, one in matrices.items() if one} == {"random": 20, "grid": 4, "bayesian": 6}
    assert matrices["random"] and matrices["random"].plain() == {
        "lr": {"log_uniform": [1e-5, 0.1]},
        "bs": ["16", "32"],
        "layers": {"integer": [0, 7]},
        "draws": 10,
        "draws_seed": 42,
    }
    assert matrices["grid"] and list(matrices["grid"].trials())[2] == {"lr": "0.010", "opt": "sgd"}


def test_data_and_environments_are_named_as_a_job_file_names_them() -> None:
    images = of_file("command.yml")[0].data["images"]
    assert (images.dataset, images.mode) == ("azureml:hymenoptera@1", "download")
    assert of_file("command.yml")[0].environment.kept == "azureml:AzureML-acpt-pytorch-2.2-cuda12.1@latest"
    assert of_text("command: x\nenvironment: azureml:a:2\ncompute: local")[0].environment.kept is None
    assert of_file("conda.yml")[0].environment.requirements == "environment.yml"
    built = of_file("dockerfile.yml")[0].environment
    assert (built.dockerfile, built.context) == ("docker/Dockerfile.gpu", "docker")
    assert of_file("mpi.yml")[0].spot
    assert of_file("optional_inputs.yml")[0].data["table"].path == "https://example.org/t.csv"


def test_paths_are_those_of_the_original_as_seen_from_the_job_file() -> None:
    text = "command: python t.py ${{inputs.d}}\ncode: src\ninputs: {d: {path: ../data}}\ncompute: local"
    job, _ = of_text(text, folder="jobs/large")
    assert (job.source, job.data["d"].path) == ("jobs/large/src", "jobs/data")
    job, _ = of_text("command: python t.py\ncode: a\nenvironment: {conda_file: b/c.yml}\ncompute: local", folder="jobs")
    assert (job.source, job.run, job.environment.requirements) == ("jobs", "cd a && python t.py", "b/c.yml")


def test_the_value_of_a_secret_is_not_copied() -> None:
    assert "not-for-the-file" not in of_file("image.yml")[1].text()


def mappings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Those whose keys Azure ML defines; in the others, a key is a name."""
    if isinstance(value, dict):
        if path[-1:] not in (("inputs",), ("outputs",), ("environment_variables",), ("search_space",)):
            yield path
        for key, one in value.items():
            yield from mappings(one, (*path, key))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_key_without_a_counterpart_is_listed_wherever_it_stands(name: str) -> None:
    data = yaml.safe_load((FILES / name).read_text(encoding="utf-8"))
    for path in mappings(data):
        changed = copy.deepcopy(data)
        inner = changed
        for key in path:
            inner = inner[key]
        inner["frobnicate"] = 7
        listed = [one.what for one in translated(json.dumps(changed), name).unmapped]
        whole = path[0] in ("tags", "identity", "services", "early_termination") if path else False
        assert any("frobnicate" in one or (whole and one.startswith(path[0])) for one in listed), path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("- a", 1),
        ("command: a: b", 1),
        ("code: src\ncompute: c", 1),
        ("command: ''\ncode: src", 1),
        ("command: x\ncommand: y", 2),
        ("code: .\ntype: pipeline\njobs: {}", 2),
        ("code: .\njobs: {}", 1),
        ("code: .\ntype: spark", 2),
        ("code: .\ncommand: python ${{inputs.lr}}", 2),
        ("command: x\nresources:\n  instance_count: many", 3),
        ("command: x\nlimits: {timeout: -1}", 2),
        ("command: x\ninputs: [a]", 2),
        ("command: x\ninputs:\n  a: {type: uri_folder}", 3),
        ("command: x\nenvironment_variables:\n  a-b: 1", 3),
        ("command: x\ncompute: [c]", 2),
        ("type: sweep\ntrial: {command: x}\nsearch_space: {}", 3),
        ("type: sweep\ntrial: {command: x}\nsearch_space:\n  a: {type: choice, values: []}", 4),
        ("type: sweep\ntrial: {command: x}\nsearch_space:\n  a: {type: uniform, min_value: 2, max_value: 1}", 4),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(JobInvalid) as refused:
        of_text(text, "wrong.yml")
    assert refused.value.file == "wrong.yml"
    assert [one.line for one in refused.value.problems] == [line]


KEYS = st.sampled_from(
    [
        "type",
        "command",
        "trial",
        "code",
        "inputs",
        "outputs",
        "compute",
        "resources",
        "instance_count",
        "environment",
        "search_space",
        "lr",
        "values",
        "path",
        "mode",
        "image",
        "conda_file",
        "build",
        "limits",
        "timeout",
        "distribution",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=8)
LEAVES |= st.sampled_from(
    ["sweep", "choice", "azureml:a:1", "python ${{inputs.lr}}", "${{search_space.lr}}", "../x", "pytorch"]
)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5))
JOBS = st.dictionaries(KEYS, TREES, max_size=8).map(lambda found: {"command": "python train.py ${lr}", **found})


@given(JOBS, st.sampled_from([".", "jobs", "..", "../x"]))
@settings(max_examples=300, deadline=None)
def test_nonsense_becomes_a_job_or_is_refused_with_a_line(data: dict[str, Any], folder: str) -> None:
    try:
        found = translated(yaml.safe_dump(data, allow_unicode=True), "x.yml", folder)
        written = found.text()
    except JobInvalid as refused:
        assert refused.file == "x.yml" and all(one.line > 0 for one in refused.problems)
        return
    assert yaml.safe_load(written)["run"] == found.values["run"]


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_job_or_refused(text: str) -> None:
    try:
        translated(text, "x.yml").text()
    except JobInvalid as refused:
        assert all(one.line > 0 for one in refused.problems)
