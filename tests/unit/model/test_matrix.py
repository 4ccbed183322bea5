"""The matrix of a sweep: always the same trials, and every mistake named."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import JobInvalid, Problem
from stoker.model.job.job import Job
from stoker.model.job.matrix import MOST_TRIALS, Matrix
from stoker.model.job.trials import sample, trial_jobs
from stoker.model.job.values import NodeRange


def job(matrix: Any, run: str = "python train.py", **fields: Any) -> Job:
    return Job.read({"name": "ants", "run": run, "matrix": matrix, **fields})


def trials(matrix: Any) -> list[dict[str, str]]:
    read = job(matrix).matrix
    assert read is not None
    return [dict(one) for one in read.trials()]


def problems(matrix: Any, run: str = "python train.py", **fields: Any) -> list[Problem]:
    with pytest.raises(JobInvalid) as error:
        job(matrix, run, **fields)
    return list(error.value.problems)


def test_every_combination_is_a_trial_and_the_last_parameter_changes_fastest() -> None:
    found = trials({"lr": ["1e-3", "1e-2"], "seed": "1..2"})
    assert [tuple(one.values()) for one in found] == [("1e-3", "1"), ("1e-3", "2"), ("1e-2", "1"), ("1e-2", "2")]


def test_a_single_value_a_range_with_a_step_and_truth_values_are_taken_as_written() -> None:
    assert trials({"a": 5, "n": "0..20..10", "flag": [True]}) == [
        {"a": "5", "n": n, "flag": "true"} for n in ("0", "10", "20")
    ]


def test_zipped_parameters_go_together() -> None:
    found = trials({"model": ["small", "large"], "seed": "1..2", "batch": [64, 8], "zip": ["model", "batch"]})
    assert [tuple(one.values()) for one in found] == [
        ("small", "1", "64"),
        ("small", "2", "64"),
        ("large", "1", "8"),
        ("large", "2", "8"),
    ]


def test_an_excluded_combination_is_matched_by_its_number_not_by_how_it_is_written() -> None:
    found = trials({"lr": ["1e-3", "1e-2"], "seed": "1..2", "exclude": [{"lr": 0.01, "seed": 2}]})
    assert {"lr": "1e-2", "seed": "2"} not in found and len(found) == 3


def test_drawn_values_stay_the_same_when_more_of_them_are_drawn() -> None:
    drawn = {"lr": {"log_uniform": [1e-5, 0.1]}, "width": {"integer": [8, 64]}}
    few, many = trials({**drawn, "draws": 5}), trials({**drawn, "draws": 40})
    assert many[:5] == few and len({one["lr"] for one in many}) == 40
    assert all(1e-5 <= float(one["lr"]) <= 0.1 and 8 <= int(one["width"]) <= 64 for one in many)
    assert trials({**drawn, "draws": 5, "draws_seed": 1}) != few
    assert sum(float(one["lr"]) < 1e-3 for one in many) in range(
        12, 29
    )  # half of them: it is the exponent that is uniform


def test_drawn_parameters_are_drawn_together_and_combined_with_the_others() -> None:
    found = trials({"lr": {"uniform": [0, 1]}, "decay": {"uniform": [0, 1]}, "seed": "1..3", "draws": 4})
    assert len(found) == 12 and len({(one["lr"], one["decay"]) for one in found}) == 4


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)
        | st.just("1..3")
        | st.just({"uniform": [0, 1]}),
        min_size=1,
    ),
    st.integers(1, 5),
)
def test_its_size_is_known_without_expanding_it_and_it_survives_being_stored(plain: Any, draws: int) -> None:
    matrix = job({**plain, "draws": draws}).matrix
    assert matrix is not None
    found = [tuple(one.items()) for one in matrix.trials()]
    assert len(found) == len(set(found)) == matrix.size
    again = job(matrix.plain()).matrix
    assert again is not None and [tuple(one.items()) for one in again.trials()] == found


def test_values_are_filled_in_and_become_variables() -> None:
    read = job({"lr": ["1e-3"]}, "python train.py --lr ${matrix.lr}", env={"TAG": "lr-${matrix.lr}"})
    ((values, trial),) = trial_jobs(read)
    assert trial.run == "python train.py --lr 1e-3" and values == {"lr": "1e-3"}
    assert trial.env == {"TAG": "lr-1e-3", "STOKER_MATRIX_LR": "1e-3"}
    assert trial.matrix is None and trial.budget is None
    assert Job.read(trial.plain()) == trial  # a trial is an ordinary job


def test_a_placeholder_that_is_not_in_the_matrix_is_named_with_the_nearest() -> None:
    (found,) = problems({"lr": [1]}, "python train.py ${matrix.rl}")
    assert (found.field, found.found, found.nearest) == ("run", "`${matrix.rl}`", "matrix.lr")
    (found,) = problems({"width": [1]}, env={"A": "${matrix.widht}"})
    assert (found.field, found.nearest) == ("env.A", "width")
    assert [one.field for one in problems(None, "python train.py ${matrix.lr}")] == ["run"]


def test_what_is_the_same_for_all_trials_cannot_depend_on_the_matrix() -> None:
    (found,) = problems({"d": ["x"]}, data={"images": "${matrix.d}/images"})
    assert found.field.startswith("data.images")


@pytest.mark.parametrize(
    ("matrix", "field", "near"),
    [
        ({}, "matrix", ""),
        ({"lr": []}, "matrix.lr", ""),
        ({"lr": "5..1"}, "matrix.lr", ""),
        ({"lr": [[1]]}, "matrix.lr[0]", ""),
        ({"l-r": [1]}, "matrix.l-r", ""),
        ({"lr": {"loguniform": [1, 2]}}, "matrix.lr.loguniform", "log_uniform"),
        ({"lr": {"log_uniform": [0, 2]}}, "matrix.lr.log_uniform", ""),
        ({"lr": {"uniform": [2, 1]}}, "matrix.lr.uniform", ""),
        ({"lr": [1, 2], "bs": [1], "zip": ["lr", "bs"]}, "matrix.zip[0]", ""),
        ({"rate": [1], "zip": ["rate", "rte"]}, "matrix.zip[0]", "rate"),
        ({"rate": [1], "exclude": [{"rte": 1}]}, "matrix.exclude[0].rte", "rate"),
        ({"lr": [1], "exclude": [{"lr": 1}]}, "matrix.exclude", ""),
        ({"seed": "1..1000000"}, "matrix", ""),
        ("lr", "matrix", ""),
    ],
)
def test_every_mistake_names_its_place_and_what_was_meant(matrix: Any, field: str, near: str) -> None:
    found = problems(matrix)[0]
    assert (found.field, found.nearest) == (field, near)


def test_a_matrix_of_a_million_trials_is_refused_before_it_is_expanded() -> None:
    (found,) = problems({"a": "1..1000", "b": "1..1000"})
    assert found.found == "1,000,000 trials" and f"{MOST_TRIALS:,}" in found.expected


def test_a_job_without_a_matrix_is_not_a_sweep() -> None:
    assert job(None).matrix is None and isinstance(job({"a": 1}).matrix, Matrix)


def test_machines_and_data_may_differ_between_trials() -> None:
    """As `stoker run --matrix nodes=1,2..3` does for a scaling report."""
    swept = job(
        {"nodes": [1, "2..3"], "cpus": [4, 8], "mode": ["mount", "download"], "zip": ["nodes", "cpus", "mode"]},
        nodes="${matrix.nodes}",
        cpus="${matrix.cpus}",
        gpus="${matrix.cpus}",
        processes="${matrix.cpus}",
        data={"ants": {"dataset": "ants-${matrix.nodes}", "mode": "${matrix.mode}"}},
    )
    assert Job.read(swept.plain()) == swept
    found = [one for _, one in trial_jobs(swept)]
    assert [one.nodes for one in found] == [1, NodeRange(2, 3)] and found[1].most_nodes == 3
    assert [(one.cpus, one.gpus, one.processes) for one in found] == [(4, 4, 4), (8, 8, 8)]
    assert [(one.data["ants"].dataset, one.data["ants"].mode) for one in found] == [
        ("ants-1", "mount"),
        ("ants-2..3", "download"),
    ]
    first = sample(swept)
    assert (first.nodes, first.cpus, first.matrix) == (1, 4, swept.matrix) and sample(found[1]) is found[1]
    assert all(Job.read(one.plain()) == one for one in found)


def test_values_that_a_field_cannot_have_are_refused_where_the_field_is() -> None:
    (problem,) = problems({"n": [0, 1]}, nodes="${matrix.n}")
    assert problem.field == "nodes" and "`0`" in problem.found
    (problem,) = problems({"n": {"uniform": [1, 2]}, "draws": 1}, cpus="${matrix.n}")
    assert problem.field == "cpus"
    data = {"ants": {"dataset": "ants", "mode": "${matrix.mode}"}}
    (problem,) = problems({"mode": ["mount", "downlaod"]}, data=data)
    assert (problem.field, problem.nearest) == ("data.ants.mode", "download")
    (problem,) = problems({"width": [1]}, nodes="${matrix.widths}")
    assert (problem.field, problem.nearest) == ("nodes", "width")
    (problem,) = problems({"n": [1]}, data={"ants": {"path": "${matrix.n}"}})
    assert problem.field == "data.ants.path"
    assert [one.field for one in problems(None, nodes="${matrix.n}")] == ["nodes"]
    (_, several) = (one for _, one in trial_jobs(job({"n": [1, "1..2"]}, nodes="${matrix.n}", exact=True)))
    with pytest.raises(JobInvalid):  # as when it is submitted
        replace(several, name=several.name)


def test_a_search_that_draws_takes_any_number_of_combinations_and_no_rules_about_them() -> None:
    search = {"by": "optuna", "metric": "acc"}
    large = dict.fromkeys("abc", "1..1000") | {"draws": 7}
    read = job(large, search=search)
    assert Job.read(read.plain()) == read and read.plain()["matrix"]["draws"] == 7
    assert [one.field for one in problems({"a": [1, 2], "exclude": [{"a": 1}]}, search=search)] == ["matrix.exclude"]
    assert [one.field for one in problems({**large, "draws": MOST_TRIALS + 1}, search=search)] == ["matrix.draws"]
    (one,) = problems({"nodes": [1, 2]}, nodes="${matrix.nodes}", search=search)
    assert one.field == "nodes"


@pytest.mark.parametrize(
    ("run", "value", "words"),
    [
        ("t --m ${matrix.v} --x", "a b", ["t", "--m", "a", "b", "--x"]),
        ("t ${matrix.v} --x", "", ["t", "--x"]),
        ("t --m '${matrix.v}' --x", "a 'b'", ["t", "--m", "a 'b'", "--x"]),
        ('t --m="${matrix.v}" --x', 'a "b" $(c) `d` \\', ["t", '--m=a "b" $(c) `d` \\', "--x"]),
        ("t ${matrix.v} --x", "a;b $(c) 'd' *", ["t", "a;b", "$(c)", "'d'", "*", "--x"]),
        ("t \\'${matrix.v} \"it's ${matrix.v}\"", "a b", ["t", "'a", "b", "it's a b"]),
        ("t ${matrix.v}", "日本 --amp=1e-3", ["t", "日本", "--amp=1e-3"]),
    ],
)
def test_values_are_words_or_one_word_in_quotes_and_never_commands(run: str, value: str, words: list[str]) -> None:
    (trial,) = [one for _, one in trial_jobs(job({"v": [value]}, run))]
    said = subprocess.run(
        ["sh", "-c", f"t() {{ printf '%s\\0' t \"$@\"; }}; {trial.run}"], capture_output=True, text=True, check=True
    )
    assert said.stdout.split("\0")[:-1] == words and said.stderr == ""
    assert trial.env["STOKER_MATRIX_V"] == value


def test_what_would_give_two_trials_alike_or_one_that_cannot_start_is_refused() -> None:
    assert [one.field for one in problems({"lr": ["1e-3", 0.001, 5]})] == ["matrix.lr[1]"]
    assert trials({"m": ["a", "a"], "n": [1, 2], "zip": ["m", "n"]}) == [{"m": "a", "n": "1"}, {"m": "a", "n": "2"}]
    assert [one.field for one in problems({"lr": [1], "LR": [2]})] == ["matrix.LR"]
    wrong = problems({"a": ["x", "${matrix.b}", "${other}"], "b": [1]})
    assert [one.field for one in wrong] == ["matrix.a[1]", "matrix.a[2]"]
    assert len(trials({"seed": ["10000000000000000", "10000000000000001", "nan", "inf"]})) == 4
    assert [one.field for one in problems({"n": {"integer": [0.5, 2]}})] == ["matrix.n.integer"]
    shared = job({"a": ["${outputs}/x"]}, "t ${matrix.a}")
    assert next(trial_jobs(shared))[1].run == "t '${outputs}/x'"
