"""The trials of a sweep: one job for each combination of its matrix."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from stoker.model.job.job import Job
from stoker.model.job.matrix import Values
from stoker.model.job.references import filled, variable

_TEXTS = ("run", "resume", "gpu", "size", "region")


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
    for name in _TEXTS:
        if text := getattr(template, name):
            object.__setattr__(trial, name, filled(text, values))
    env = {name: filled(text, values) for name, text in template.env.items()}
    object.__setattr__(trial, "env", {**env, **{variable(name): text for name, text in values.items()}})
    return trial


def trial_jobs(job: Job) -> Iterator[tuple[Values, Job]]:
    """In order. The job has a matrix."""
    first = template(job)
    for values in job.matrix.trials() if job.matrix else ():
        yield values, trial_job(first, values)
