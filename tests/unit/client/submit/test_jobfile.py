from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.client.submit import jobfile
from stoker.client.submit.jobfile import JobFile
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.job.job import Job

Write = Callable[[str | bytes], Path]
Find = Callable[..., list[Problem]]
Read = Callable[..., Job]

GOOD = """\
# what to run
name: ants
run: python train.py --out ${outputs}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "stoker.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def problems(write: Write) -> Find:
    def problems(text: str | bytes, *sets: str) -> list[Problem]:
        with pytest.raises(JobInvalid) as caught:
            jobfile.read(write(text), sets)
        return list(caught.value.problems)

    return problems


@pytest.fixture
def job(write: Write) -> Read:
    def job(text: str, *sets: str) -> Job:
        return jobfile.read(write(text), sets).job

    return job


def where(problem: Problem) -> tuple[str, int, int]:
    return problem.field, problem.line, problem.column


def test_a_job_file_gives_its_job_and_its_folder(write: Write, tmp_path: Path) -> None:
    read = jobfile.read(write(GOOD))
    assert read.job == Job(name="ants", run="python train.py --out ${outputs}")
    assert read.folder == tmp_path


def test_every_field_of_the_design_can_be_written(job: Read) -> None:
    read = job("""\
name: ants-and-bees
run: python train.py --input_dir ${data.images} --output_dir ${outputs} --epochs 25
source: .
environment: requirements.txt
data:
  images: {dataset: hymenoptera, mode: auto}
outputs: outputs
checkpoints: checkpoints
on: local
nodes: 1
processes: 1
launcher: auto
spot: {max_price: 0.50, fallback: on-demand}
budget: $5
deadline: 12h
time_limit: 8h
retries: 2
priority: normal
stop_when: hr@10 >= 0.979
env: {OMP_NUM_THREADS: "1"}
secrets: [HF_TOKEN]
""")
    assert read.on == "local"
    assert read.spot and read.spot.max_price == Decimal("0.50")
    assert read.deadline == 12 * 3600
    assert str(read.stop_when) == "hr@10 >= 0.979"


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "2020-01-01", "12:30:45", "1_000"])
def test_words_that_older_yaml_turns_into_something_else_stay_text(job: Read, word: str) -> None:
    assert job(f"{GOOD}env:\n  A: {word}\n").env["A"] == word


@pytest.mark.parametrize("number", ["1.10", "007", "1e3", "0x10", "+5", ".5", "-.inf"])
def test_a_number_in_the_environment_is_taken_as_it_is_written(job: Read, number: str) -> None:
    assert job(f"{GOOD}env:\n  A: {number}\n").env["A"] == number


def test_money_is_exact(job: Read) -> None:
    assert job(GOOD + "budget: 0.10\n").budget == Decimal("0.10")


def test_anchors_and_aliases_are_fine(job: Read) -> None:
    read = job(GOOD + "env: &e {A: b}\ndata:\n  x: &p /data\n  y: *p\n")
    assert read.data["y"].path == "/data"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "ndoes: 2\n", [("ndoes", 4, 1)]),
        (GOOD + "nodes: many\n", [("nodes", 4, 8)]),
        (GOOD + "spot:\n  max_price: lots\n  fallbak: none\n", [("spot.max_price", 5, 14), ("spot.fallbak", 6, 3)]),
        (GOOD + "checkpoints: [a, ../b]\n", [("checkpoints[1]", 4, 18)]),
        (GOOD + "checkpoints:\n  - a\n  - /b\n", [("checkpoints[1]", 6, 5)]),
        (GOOD + "env:\n  1A: x\n", [("env.1A", 5, 3)]),
        (GOOD + "env:\n  A: [1]\n", [("env.A", 5, 6)]),
        (GOOD + "env:\n  STOKER_RUN: x\n", [("env.STOKER_RUN", 5, 3)]),
        (GOOD + "data:\n  x:\n    mode: fast\n", [("data.x.mode", 6, 11)]),
        (GOOD + "data:\n  x: {mode: mount}\n", [("data.x.dataset", 5, 6)]),
        (GOOD + "nodes: 1\nnodes: 2\n", [("nodes", 5, 1)]),
        (GOOD + "env: {A: 1, B: 2, A: 3}\n", [("env.A", 4, 19)]),
        ("name: ants\n", [("run", 1, 1)]),
        ("\n\n# late\nrun: x\n", [("name", 4, 1)]),
        ("name: Ants\nrun: x ${output}\n", [("name", 1, 7)]),
        ("name: ants\nrun: x ${output}\n", [("run", 2, 6)]),
        ("- name\n- run\n", [("job", 1, 1)]),
        ("just words\n", [("job", 1, 1)]),
        (GOOD + "nodes: &n x\nretries: *n\n", [("nodes", 4, 8), ("retries", 5, 10)]),
    ],
)
def test_problems_have_their_places_in_the_order_of_the_file(problems: Find, text: str, expected: Any) -> None:
    assert [where(problem) for problem in problems(text)] == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "found"),
    [
        ("", 1, 1, "an empty file"),
        ("# nothing\n\n", 1, 1, "an empty file"),
        ("name: x\n\trun: y\n", 2, 1, "a tab"),
        ("env:\n\tA: b\n", 2, 1, "a tab"),
        ("name: a: b\n", 1, 8, "a `:` in the middle of a value"),
        ("name: x\nrun: @y\n", 2, 6, "`@`"),
        ("name: x\nrun: 'y\n", 2, 6, "a quote or bracket that is not closed"),
        ("name: x\nenv: {A: b\n", 2, 6, "a quote or bracket that is not closed"),
        ("name: x\nenv: {A: b]\nrun: x\n", 2, 11, "`]`"),
        ("name: x\x00\n", 1, 8, "the character '\\x00'"),
        ("name: é\nrun: é\x07\n", 2, 7, "the character '\\x07'"),
        ("name: x\n---\nname: y\n", 2, 1, "a second document"),
        ("name: *x\n", 1, 7, "`*x`"),
        ("name: &x [*x]\n", 1, 11, "`*x` inside itself"),
        ("name: !!python/name:os.system x\n", 1, 7, "the tag `tag:yaml.org,2002:python/name:os.system`"),
        ("name: !mine x\n", 1, 7, "the tag `!mine`"),
        ("name: !!int x\n", 1, 7, "`x` tagged `tag:yaml.org,2002:int`"),
        ("name: x\n? [a]\n: b\n", 2, 3, "a key that is not text"),
        ("name: " + "[" * 100_000, 1, 36, "values inside values inside values"),
    ],
)
def test_what_cannot_be_read_is_shown_with_its_place(
    problems: Find, text: str, line: int, column: int, found: str
) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.column, problem.found) == (line, column, found)


def test_a_few_lines_that_stand_for_billions_of_values_are_refused(problems: Find) -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in ("ab", "bc", "cd", "de", "ef", "fg", "gh"):
        rows.append(f"{name}: &{name} [{', '.join(['*' + before] * 9)}]")
    (problem,) = problems("\n".join(rows))
    assert problem.found == "values inside values inside values"


def test_bytes_that_are_not_text_have_a_place(problems: Find) -> None:
    (problem,) = problems(b"name: \xc3\xa9\nrun: a\xff\n")
    assert (problem.line, problem.column, problem.found) == (2, 7, "the byte 0xff")


def test_a_byte_order_mark_does_no_harm(write: Write) -> None:
    assert jobfile.read(write(b"\xef\xbb\xbf" + GOOD.encode())).job.name == "ants"


def test_an_unknown_key_names_the_nearest(problems: Find) -> None:
    (problem,) = problems(GOOD + "ndoes: 2\n")
    assert problem.nearest == "nodes"


def test_the_message_can_be_clicked_in_an_editor(write: Write) -> None:
    path = write(GOOD + "nodes: 0\n")
    with pytest.raises(JobInvalid) as caught:
        jobfile.read(path)
    assert (
        str(caught.value)
        == f"{path}:4:8: nodes: found `0`, expected a whole number, 1 or more, or a range such as `2..4`"
    )


def test_a_missing_file_is_answered_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"stoker\.yaml") as caught:
        jobfile.read(tmp_path / "stoker.yaml")
    assert "stoker init" in caught.value.hint


def test_a_missing_file_points_to_the_one_with_the_other_ending(tmp_path: Path) -> None:
    (tmp_path / "stoker.yml").touch()
    with pytest.raises(BadInput) as caught:
        jobfile.read(tmp_path / "stoker.yaml")
    assert str(tmp_path / "stoker.yml") in caught.value.hint


def test_a_folder_is_not_a_job_file(tmp_path: Path, write: Write) -> None:
    write(GOOD)
    with pytest.raises(BadInput) as caught:
        jobfile.read(tmp_path)
    assert str(tmp_path / "stoker.yaml") in caught.value.hint


def test_a_file_of_megabytes_is_not_a_job_file(write: Write) -> None:
    with pytest.raises(BadInput, match="bytes"):
        jobfile.read(write("#" * 1_000_001))


def test_problems_that_come_back_from_the_server_get_their_places(write: Write) -> None:
    read = jobfile.read(write(GOOD + "data:\n  images: /nowhere\n"))
    located = read.locate(JobInvalid([Problem("data.images", "`/nowhere`", "a path that exists")], hint="look"))
    assert [where(problem) for problem in located.problems] == [("data.images", 5, 11)]
    assert located.hint == "look"
    assert str(located).startswith(f"{read.path}:5:11: ")


def test_a_problem_of_a_field_the_file_does_not_have_is_placed_at_its_start(write: Write) -> None:
    read = jobfile.read(write(GOOD))
    located = read.locate(JobInvalid([Problem("on", "`local`", "a provider")]))
    assert where(located.problems[0]) == ("on", 2, 1)


@pytest.mark.parametrize(
    ("setting", "field", "expected"),
    [
        ("nodes=4", "nodes", 4),
        ("name=bees", "name", "bees"),
        ('run=python x.py # all of it: "yes"', "run", 'python x.py # all of it: "yes"'),
        ("on=gpu", "on", "gpu"),
        ("budget=$3.50", "budget", Decimal("3.50")),
        ("budget=", "budget", None),
        ("checkpoints=[a, b]", "checkpoints", ("a", "b")),
        ("checkpoints[1]=more", "checkpoints", ("checkpoints", "more")),
        ("checkpoints[0]=other", "checkpoints", ("other",)),
        ("secrets=[A, B]", "secrets", ("A", "B")),
        ("secrets=A", "secrets", ("A",)),
        ("env.A=b", "env", {"A": "b"}),
        ("env.A=1.10", "env", {"A": "1.10"}),
        ("env.A=", "env", {"A": ""}),
        ('env.A={"x": 1}', "env", {"A": '{"x": 1}'}),
        ("env.A='quoted'", "env", {"A": "quoted"}),
        ("env={A: b, C: d}", "env", {"A": "b", "C": "d"}),
        ("stop_when=val_acc>=0.9", "stop_when", "val_acc >= 0.9"),
        ("name='bees'", "name", "bees"),
        (" nodes = 4", "nodes", 4),
    ],
)
def test_a_setting_on_the_command_line_is_read_like_the_file(
    job: Read, setting: str, field: str, expected: Any
) -> None:
    value = getattr(job(GOOD, setting), field)
    assert (str(value) if field == "stop_when" else value) == expected


def test_a_setting_changes_a_part_and_keeps_the_rest(job: Read) -> None:
    text = GOOD + "spot: {max_price: 1, fallback: on-demand}\nenv: {A: a, B: b}\ncheckpoints: [x, y]\n"
    read = job(text, "spot.max_price=0.5", "env.B=c", "checkpoints[1]=z")
    assert read.spot and (read.spot.max_price, read.spot.fallback) == (Decimal("0.5"), "on-demand")
    assert read.env == {"A": "a", "B": "c"}
    assert read.checkpoints == ("x", "z")


def test_a_setting_inside_a_short_form_widens_it(job: Read) -> None:
    text = GOOD + "environment: requirements.txt\ndata: {x: /a}\nspot: true\n"
    read = job(text, "environment.python=/usr/bin/python3", "data.x.mode=mount", "spot.max_price=2")
    assert (read.environment.requirements, read.environment.python) == ("requirements.txt", "/usr/bin/python3")
    assert (read.data["x"].path, read.data["x"].mode) == ("/a", "mount")
    assert read.spot and read.spot.max_price == 2


def test_the_last_of_several_settings_wins(job: Read) -> None:
    assert job(GOOD, "nodes=2", "nodes=3").nodes == 3


def test_a_setting_can_mend_the_file(job: Read) -> None:
    assert job(GOOD + "nodes: many\n", "nodes=3").nodes == 3


@pytest.mark.parametrize(
    ("setting", "field", "nearest"),
    [
        ("ndoes=4", "--set ndoes", "nodes"),
        ("spot.max_prize=1", "--set spot.max_prize", "max_price"),
        ("nodes=x", "--set nodes", ""),
        ("nodes.x=1", "--set nodes", ""),
        ("checkpoints[5]=x", "--set checkpoints[5]", ""),
        ("nodes", "--set nodes", ""),
        ("=4", "--set =4", ""),
        ("a b=4", "--set a b=4", ""),
        ("checkpoints=[a", "--set checkpoints", ""),
        ("run=", "--set run", ""),
    ],
)
def test_a_wrong_setting_is_named_as_the_place(problems: Find, setting: str, field: str, nearest: str) -> None:
    (problem,) = problems(GOOD, setting)
    assert (problem.field, problem.nearest, problem.line) == (field, nearest, 0)


def test_problems_of_file_and_settings_come_together(problems: Find) -> None:
    found = problems(GOOD + "nodes: x\nretries: y\n", "processes=z")
    assert [where(one) for one in found] == [("nodes", 4, 8), ("retries", 5, 10), ("--set processes", 0, 0)]


YAMLISH = st.text(alphabet="abnameru:01.- \n\t{}[]&*!'\"#|>%@,?\x00é\u2028\ud7ff", max_size=80)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(st.binary(max_size=60), st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")), YAMLISH)
)
def test_any_file_gives_a_job_or_a_clean_error(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "stoker.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    expect_job_or_clean_error(path, [])


KEYS = st.sampled_from(
    [
        *("name", "run", "data.x", "data.x.mode", "env.A", "spot", "spot.max_price", "stop_when", "data", "nodes[0]"),
        *("checkpoints[0]", "checkpoints[1].x", "environment.python", "nodes.a.b", "secrets[0]", "no.deep[3].er"),
    ]
)
SETS = st.one_of(st.text(max_size=40), st.builds("{}={}".format, KEYS, st.one_of(st.text(max_size=20), YAMLISH)))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(SETS, max_size=4))
def test_any_setting_gives_a_job_or_a_clean_error(tmp_path: Path, sets: list[str]) -> None:
    path = tmp_path / "stoker.yaml"
    path.write_text(GOOD + "spot: true\ncheckpoints: a\ndata: {x: /a}\n")
    expect_job_or_clean_error(path, sets)


def expect_job_or_clean_error(path: Path, sets: list[str]) -> None:
    try:
        assert isinstance(jobfile.read(path, sets), JobFile)
    except JobInvalid as invalid:
        assert invalid.problems
        assert all(one.line >= 1 and one.column >= 1 for one in invalid.problems if "--set" not in one.field)
    except BadInput:
        pass
