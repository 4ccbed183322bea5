"""The trials of a sweep: one job for each combination of its matrix."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.model.job import fields
from stoker.model.job.commandline import inserted
from stoker.model.job.fields import OF_MATRIX, Plain
from stoker.model.job.job import Job
from stoker.model.job.matrix import Values
from stoker.model.job.references import IN_TRIALS, NUMBERS, PLACES, filled, variable
from stoker.model.job.values import NodeRange


def template(job: Job) -> Job:
    """A trial's job before its values are filled in: what concerns the sweep as a whole is not part of it. It is not
    checked again, because nothing is left that its `${matrix.…}` refer to."""
    bare = copy.copy(job)
    for name in ("matrix", "max_parallel", "budget"):
        object.__setattr__(bare, name, None)
    return bare


def trial_job(template: Job, values: Values) -> Job:
    """One of thousands: only what changes is made anew, and the template was checked."""
    trial = copy.copy(template)
    for name in varying(template):
        object.__setattr__(trial, name, _filled(template, name, values))
    env = {name: filled(text, values) for name, text in template.env.items()}
    object.__setattr__(trial, "env", {**env, **{variable(name): text for name, text in values.items()}})
    return trial


def varying(job: Job) -> list[str]:
    """Fields of a sweep's job that its trials have values of their own in; `env` is always one."""
    return [name for name in IN_TRIALS if name != "env" and _refers(getattr(job, name))]


def places(job: Job) -> list[str]:
    """Those of them that decide where a trial may run, and with which data."""
    return [name for name in varying(job) if name in PLACES]


def sample(job: Job) -> Job:
    """A sweep's job with the machines and the data of its first trial; another job as it is."""
    names = places(job)
    if not names or not job.matrix:
        return job
    values = next(job.matrix.trials())
    return replace(job, **{name: _filled(job, name, values) for name in names})


def plain_of(job: Job, names: list[str]) -> dict[str, Plain]:
    """Some fields, as `Job.plain` has them."""
    found = {name: getattr(job, name) for name in names}
    return {name: str(one) if isinstance(one, NodeRange) else fields.plain(one) for name, one in found.items()}


def _refers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_refers(text) for one in value.values() for text in (one.dataset, one.mode))
    return isinstance(value, str) and OF_MATRIX.search(value) is not None


def _filled(job: Job, name: str, values: Values) -> Any:
    given = getattr(job, name)
    if name == "data":
        return {
            key: replace(
                one, dataset=filled(one.dataset, values) if one.dataset else None, mode=filled(one.mode, values)
            )
            for key, one in given.items()
        }
    if name in ("run", "resume"):
        return inserted(given, OF_MATRIX, values)
    text = filled(given, values)
    return fields.kind_of(Job.__dataclass_fields__[name]).read(text, name) if name in NUMBERS else text


def trial_jobs(job: Job) -> Iterator[tuple[Values, Job]]:
    """In order. The job has a matrix."""
    first = template(job)
    for values in job.matrix.trials() if job.matrix else ():
        yield values, trial_job(first, values)
