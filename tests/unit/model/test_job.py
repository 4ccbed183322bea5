"""A job that exists is valid; an invalid one reports everything that is wrong with it."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import JobInvalid
from stoker.model.job.commandline import substitute
from stoker.model.job.job import (
    DataInput,
    DataMode,
    Environment,
    Fallback,
    Job,
    Launcher,
    Priority,
    Spot,
    schema,
)
from stoker.model.job.references import references
from stoker.model.job.sections import Target

LEAST = {"name": "ants", "run": "python train.py"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1h", "$5", "true", "gpus", "acc >= 0.5", "on-demand", "../x", "${data.x}", "high", "STOKER_X"])
)
FIELDS = [one.name for one in dataclasses.fields(Job)]
keys = st.text(max_size=8) | st.integers() | st.sampled_from([*FIELDS, "dataset", "path", "mode", "image", "x"])
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=10
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(str.strip)
names = st.from_regex(r"[a-z0-9](?:[a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
variables = st.from_regex(r"[A-RT-Za-z][A-Za-z0-9_]{0,10}", fullmatch=True)
folders = st.from_regex(r"[a-z]{1,5}(?:/[a-z]{1,5}){0,2}", fullmatch=True)
money = st.decimals(Decimal("0.000001"), 10**6, allow_nan=False, places=6) | st.sampled_from(["$5", "0.50", 3])
listed = st.lists(st.integers(-9, 9) | st.sampled_from(["a", "1e-3"]), min_size=1, max_size=3, unique=True)
parameters = listed | st.sampled_from(
    ["1..5", "0..9..3", {"uniform": [0, 1]}, {"log_uniform": [1e-5, 0.1]}, {"integer": [1, 9]}]
)
durations = st.sampled_from(["90s", "1h30m", "2d"]) | st.floats(1e-3, 1e9)
targets = st.builds(Target, st.sampled_from(["hr@10", "loss"]), st.sampled_from([">=", "<"]), st.floats(-1e9, 1e9))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": names,
    "run": words.filter(lambda text: "${" not in text),
    "matrix": st.dictionaries(variables.map(str.upper), parameters, min_size=1, max_size=3),
    "max_parallel": st.integers(1, 99),
    "source": words,
    "environment": folders
    | st.fixed_dictionaries({"image": st.from_regex(r"[a-z]{1,8}(:[a-z0-9]{1,4})?", fullmatch=True)})
    | st.fixed_dictionaries({}, optional={"requirements": folders, "python": words}),
    "data": st.dictionaries(
        variables,
        words
        | st.fixed_dictionaries({"dataset": words}, optional={"mode": st.sampled_from(list(DataMode))})
        | st.fixed_dictionaries({"path": words}),
        max_size=3,
    ),
    "outputs": folders,
    "checkpoints": folders | st.lists(folders, max_size=3),
    "on": names,
    "nodes": st.integers(1, 100) | st.sampled_from(["1..2", "2..4", "3..3"]),
    "processes": st.integers(1, 8) | st.just("gpus"),
    "launcher": st.sampled_from(list(Launcher)),
    "spot": st.booleans()
    | st.none()
    | st.fixed_dictionaries({}, optional={"max_price": money, "fallback": st.sampled_from(list(Fallback))}),
    "budget": st.none() | money,
    "deadline": st.none() | durations,
    "time_limit": st.none() | durations,
    "retries": st.integers(0, 10) | st.sampled_from(["0", "7"]),
    "priority": st.sampled_from(list(Priority)),
    "stop_when": st.none() | targets | targets.map(str),
    "env": st.dictionaries(variables, words | st.integers() | st.booleans() | st.floats(allow_nan=False), max_size=3),
    "secrets": st.just([]) | variables.map(lambda name: f"SECRET_{name}"),
}
valid_jobs = st.fixed_dictionaries(
    {name: VALUES[name] for name in ("name", "run")},
    optional={name: values for name, values in VALUES.items() if name not in ("name", "run")},
)


def problems(**changes: Any) -> list[str]:
    with pytest.raises(JobInvalid) as refused:
        Job.read(LEAST | changes)
    return [str(problem) for problem in refused.value.problems]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, plain, max_size=8).map(lambda changes: LEAST | changes) | plain)
def test_any_data_is_a_job_or_a_list_of_problems(data: Any) -> None:
    try:
        job = Job.read(data)
    except JobInvalid as refused:
        assert refused.problems
        assert all(one.found and one.expected for one in refused.problems)
        return
    assert Job.read(job.plain()) == job


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, plain, max_size=8).map(lambda changes: LEAST | changes) | plain)
def test_every_problem_names_a_field(data: Any) -> None:
    try:
        Job.read(data)
    except JobInvalid as refused:
        assert all(problem.field for problem in refused.problems)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(valid_jobs)
def test_a_job_written_down_is_read_as_itself(data: dict[str, Any]) -> None:
    job = Job.read(data)
    assert Job.read(job.plain()) == job
    assert Job(**data) == job


def test_a_name_and_a_command_are_enough() -> None:
    assert Job.read(LEAST) == Job(name="ants", run="python train.py")
    assert problems(name=None) == [
        "name: found nothing, expected lower-case letters, digits, `-`, `_` and `.`, at most 60"
    ]


def test_short_forms_stand_for_long_ones() -> None:
    job = Job.read(
        LEAST
        | {"environment": "requirements.txt", "data": {"images": "./data"}, "checkpoints": "ckpt", "spot": True}
        | {"stop_when": "acc>=0.9", "budget": "$5", "deadline": "12h", "secrets": "TOKEN"}
    )
    assert job.environment == Environment(requirements="requirements.txt")
    assert job.data == {"images": DataInput(path="./data")}
    assert job.checkpoints == ("ckpt",)
    assert job.spot == Spot()
    assert job.stop_when == Target("acc", ">=", 0.9)
    assert (job.budget, job.deadline, job.secrets) == (Decimal(5), 43200.0, ("TOKEN",))


def test_an_unknown_key_is_a_problem_at_any_depth() -> None:
    found = problems(nmae="x", spot={"max_prise": 1}, data={"a": {"dataset": "d", "moode": "auto"}})
    assert [line.split(":")[0] for line in found] == ["nmae", "data.a.moode", "spot.max_prise"]
    assert found[0].endswith("(did you mean `name`?)")
    assert found[1].endswith("(did you mean `mode`?)")
    assert found[2].endswith("(did you mean `max_price`?)")


def test_one_look_shows_everything_that_is_wrong() -> None:
    found = problems(nodes=0, retries="many", priority="hihg", env={"1A": "x"})
    assert [line.split(":")[0] for line in found] == ["nodes", "retries", "priority", "env.1A"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": "train ${data.imgs}", "data": {"images": "x"}}, "run: found `${data.imgs}`"),
        ({"run": "train ${output}"}, "run: found `${output}`"),
        ({"env": {"STOKER_RUN": "x"}}, "env.STOKER_RUN: found `STOKER_RUN`"),
        ({"env": {"TOKEN": "x"}, "secrets": ["TOKEN"]}, "env.TOKEN: found the name of a secret"),
        ({"environment": {"image": "i", "dockerfile": "D"}}, "environment.dockerfile: found `image` as well"),
        ({"data": {"x": {}}}, "data.x.dataset: found neither `dataset` nor `path`"),
        ({"data": {"x": {"dataset": "d", "path": "p"}}}, "data.x.dataset: found both `dataset` and `path`"),
    ],
)
def test_fields_that_do_not_go_together_are_a_problem(changes: dict[str, Any], problem: str) -> None:
    (found,) = problems(**changes)
    assert found.startswith(problem)


def test_a_job_in_python_is_checked_as_one_in_a_file() -> None:
    with pytest.raises(JobInvalid) as refused:
        Job(name="ants", run="x", nodes=0)
    assert [(one.field, one.found) for one in refused.value.problems] == [("nodes", "`0`")]


def test_references_of_ours_are_filled_in_and_others_left_to_the_shell() -> None:
    job = Job(name="a", run="x ${data.images} ${HOME} ${outputs}", data={"images": DataInput(path="p")})
    assert references(job) == ["outputs", "checkpoints", "data.images"]
    values = {"data.images": "/d", "outputs": "/o"}
    assert substitute(job.run, values) == "x /d ${HOME} /o"


def test_the_schema_describes_every_field() -> None:
    described = schema()
    assert list(described["properties"]) == FIELDS
    assert described["required"] == ["name", "run"]
    assert all(one["description"] for one in described["properties"].values())
    assert described["additionalProperties"] is False


@pytest.mark.parametrize(
    ("environment", "taken"),
    [
        ({}, True),
        ({"python": "3.12"}, True),
        ({"packages": "all"}, True),
        ({"packages": ["accelerate"]}, True),
        ({"packages": "imported", "python": "/opt/python"}, True),
        ({"packages": "none"}, False),
        ({"python": "/opt/python"}, False),
        ("requirements.txt", False),
        ({"image": "torch:2"}, False),
    ],
)
def test_the_submitting_python_is_taken_along_unless_something_else_is_named(environment: Any, taken: bool) -> None:
    job = Job.read({"name": "x", "run": "y", "environment": environment})
    assert job.environment.is_taken_along is taken
    assert Job.read(job.plain()) == job


def test_packages_and_a_requirements_file_exclude_each_other() -> None:
    with pytest.raises(JobInvalid, match="packages"):
        Job.read({"name": "x", "run": "y", "environment": {"requirements": "r.txt", "packages": "all"}})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, (600.0, "report")),
        ("5m", (300.0, "report")),
        ({"action": "restart"}, (600.0, "restart")),
        ("off", False),
        (False, False),
    ],
)
def test_when_a_run_hangs_can_be_said_shortly_or_switched_off(written: Any, read: Any) -> None:
    job = Job.read({"name": "a", "run": "b", "retries": 1, "hang": written})
    assert (job.hang and (job.hang.after, job.hang.action)) == read
    assert Job.read(job.plain()) == job


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"aftr": 1}, "hang.aftr: found an unknown key"),
        ({"after": "0.5s"}, "hang.after: found `0.5`, expected 1 second or more"),
        ({"action": "kill"}, "hang.action: found `kill`, expected one of `report`, `restart`"),
        ({"action": "restart"}, "hang.action: found `restart`, expected `retries` of at least 1"),
        ("soon", "hang: found `soon`, expected `off`, a time such as"),
    ],
)
def test_a_wrong_hang_is_refused(written: Any, problem: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        Job.read({"name": "a", "run": "b", "hang": written})
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "least", "most"), [(4, 4, 4), ("4", 4, 4), ("2..4", 2, 4), ("1 .. 64", 1, 64), ("3..3", 3, 3)]
)
def test_nodes_are_a_number_or_a_range(given: int | str, least: int, most: int) -> None:
    job = Job.read({"name": "ants", "run": "x", "nodes": given})
    assert (job.least_nodes, job.most_nodes, job.is_elastic) == (least, most, least < most)
    assert Job.read(job.plain()) == job


@pytest.mark.parametrize("given", ["4..2", "0..3", "..3", "2..", "2..x", "2...4", 2.5, True, None, [2, 4]])
def test_a_range_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(JobInvalid, match="nodes: found"):
        Job.read({"name": "ants", "run": "x", "nodes": given})


def test_metrics_may_have_names_in_any_alphabet() -> None:
    job = Job.read(
        {
            "name": "a",
            "run": "b",
            "metrics": {"損失": "損失: (.+)"},
            "retention": {"best": "-損失"},
            "stop_when": "損失 < 0.1",
        }
    )
    assert job.metrics == {"損失": "損失: (.+)"}
    assert (job.retention.best, str(job.stop_when)) == ("-損失", "損失 < 0.1")


@pytest.mark.parametrize(
    ("job", "field", "nearest_that_works"),
    [
        ({"environment": "azureml://registries/r/environments/x/versions/1"}, "environment.requirements", "image"),
        ({"environment": {"kept": "maskrcnn"}}, "environment.kept", "PROVIDER:NAME@VERSION"),
        ({"environment": {"kept": "azureml:a@2", "python": "3.11"}}, "environment.python", "nothing"),
        ({"data": {"x": "azureml:coco:3"}}, "data.x.path", "dataset: PROVIDER"),
    ],
)
def test_the_name_of_a_providers_asset_in_a_wrong_place_is_refused_with_what_works(
    job: dict[str, Any], field: str, nearest_that_works: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        Job.read({"name": "ants", "run": "python train.py", **job})
    (problem,) = refused.value.problems
    assert problem.field == field
    assert nearest_that_works in problem.expected


@pytest.mark.parametrize("path", ["./a:b", "s3://bucket/x@3", "azureml://datastores/blobs/paths/coco@3", "a b:c@1"])
def test_a_path_or_url_with_such_signs_is_read(path: str) -> None:
    assert Job.read({"name": "ants", "run": "true", "data": {"x": path}}).data["x"].path == path


@pytest.mark.parametrize("name", ["azureml:maskrcnn@2", "azureml:maskrcnn:2"])
def test_environments_and_data_that_a_provider_keeps_have_names(name: str) -> None:
    job = Job.read({"name": "ants", "run": "true", "environment": name, "data": {"x": {"dataset": name}}})
    assert (job.environment.kept, job.environment.is_taken_along, job.data["x"].dataset) == (name, False, name)


@pytest.mark.parametrize(
    "image", ["-v", "--help", "UPPER", "a b", "x:", "../x", "docker://x", "x@sha256:1", "https://example.org/x"]
)
def test_what_is_no_name_of_an_image_never_reaches_an_engine(image: str) -> None:
    with pytest.raises(JobInvalid):
        Environment(image=image)


@pytest.mark.parametrize(
    "image",
    ["python", "pytorch/pytorch:2.5.1-cuda12.4", "127.0.0.1:5000/a/b:1", f"nvcr.io/a/b:T_1@sha256:{'1' * 64}"],
)
def test_images_are_named_as_engines_name_them(image: str) -> None:
    assert Environment(image=image).image == image
