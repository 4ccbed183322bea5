"""What `${…}` in a job refers to: folders and data of a run, and the values of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.errors import Problem
from stoker.model.job.commandline import NEWEST, NUMBER, REFERENCE
from stoker.model.job.fields import OF_MATRIX, Problems, is_reference, kind_of, nearest

if TYPE_CHECKING:
    from stoker.model.job.job import Job

MATRIX_VARIABLE = "STOKER_MATRIX_"  # and the name of the parameter in upper case
NUMBERS = ("nodes", "processes", "cpus", "gpus")
PLACES = ("gpu", "size", "region", *NUMBERS, "data")  # what says on which machines a trial runs, and with which data
_IN_DRAWN = ("run", "resume", "env")
IN_TRIALS = (*_IN_DRAWN, *PLACES)  # fields that may differ between trials
_OF_DATA = ("dataset", "mode")
_SHOWN = (*IN_TRIALS[:-1], *(f"data.<name>.{one}" for one in _OF_DATA))


def references(job: Job) -> list[str]:
    """The names the command may refer to."""
    of_matrix = [f"matrix.{name}" for name in job.matrix.names] if job.matrix else []
    data = [f"data.{name}" for name in job.data]
    return ["outputs", "checkpoints", *data, *(["resume"] if job.resume else []), *of_matrix]


def unknown_references(job: Job) -> list[Problem]:
    known = references(job)
    for_resume = [name for name in known if name != "resume"] + [NEWEST, NUMBER]
    found = _unknown_in("run", job.run, known) + _unknown_in("resume", job.resume or "", for_resume)
    return [*found, *_of_matrix(job), *_in_values(job)]


def _in_values(job: Job) -> Iterator[Problem]:
    """A value may refer to what is the same for all trials, as `${data.large}`."""
    known = [name for name in references(job) if not name.startswith("matrix.")]
    for name, values in job.matrix.parameters.items() if job.matrix else ():
        for at, text in enumerate(values) if isinstance(values, tuple) else ():
            yield from _unknown_in(f"matrix.{name}[{at}]", text, known)


def _unknown_in(field: str, text: str, known: list[str]) -> list[Problem]:
    names = [name for name in REFERENCE.findall(text) if name not in known]
    expected = "one of " + ", ".join(f"${{{name}}}" for name in known)
    return [Problem(field, f"`${{{name}}}`", expected, nearest(name, known)) for name in names]


def _of_matrix(job: Job) -> Iterator[Problem]:
    """`run` and `resume` are checked with their other references."""
    known = job.matrix.names if job.matrix else []
    drawn = job.search is not None and job.search.draws  # then what trials need is known before their values are
    differ, shown = (_IN_DRAWN, _IN_DRAWN) if drawn else (IN_TRIALS, _SHOWN)
    for path, text in _texts(job):
        for name in OF_MATRIX.findall(text):
            top, _, part = path.partition(".")
            if top not in differ or (top == "data" and part.rpartition(".")[2] not in _OF_DATA):
                expected = "the same for all trials; they may differ in " + ", ".join(f"`{one}`" for one in shown)
                yield Problem(path, f"`${{matrix.{name}}}`", expected)
            elif name not in known and top not in ("run", "resume"):
                expected = "one of " + ", ".join(f"${{matrix.{one}}}" for one in known) if known else "a `matrix`"
                yield Problem(path, f"`${{matrix.{name}}}`", expected, nearest(name, known))


def unusable_values(job: Job) -> Iterator[Problem]:
    """Values of the matrix that a field cannot have, such as 0 nodes."""
    given = [(path, record, name) for path, record, name in _typed(job) if is_reference(getattr(record, name))]
    values = list(job.matrix.trials()) if given and job.matrix else []
    for path, record, name in given:
        text, kind = getattr(record, name), kind_of(record.__dataclass_fields__[name])
        for value in dict.fromkeys(filled(text, one) for one in values):
            try:
                kind.read(value, path)
            except Problems as found:
                (one,) = found.problems
                yield Problem(path, f"{one.found} for `{text}`", one.expected, one.nearest)


def _typed(job: Job) -> Iterator[tuple[str, Any, str]]:
    """Where values of the matrix have to be more than text: the path, and the field of a record."""
    yield from ((name, job, name) for name in NUMBERS)
    yield from ((f"data.{name}.mode", one, "mode") for name, one in job.data.items())


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    for name, value in vars(job).items():
        if isinstance(value, str):
            yield name, value
        elif name in ("env", "data", "environment", "checkpoints"):
            yield from _inside(name, value)


def _inside(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _inside(f"{path}.{name}", one)
    elif isinstance(value, Sequence):
        for at, one in enumerate(value):
            yield from _inside(f"{path}[{at}]", one)
    elif hasattr(value, "__dict__"):
        yield from _inside(path, vars(value))


def filled(text: str, values: Mapping[str, str]) -> str:
    """With the values of a trial."""
    return OF_MATRIX.sub(lambda found: values[found[1]], text) if "${matrix." in text else text


def variable(name: str) -> str:
    """The variable in which a trial's script finds the value: `STOKER_MATRIX_LR` for `lr`."""
    return f"{MATRIX_VARIABLE}{name.upper()}"
