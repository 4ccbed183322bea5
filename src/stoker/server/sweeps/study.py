"""Optuna's samplers, by ask and tell. The study is what the database has of the trials: it is made anew whenever
values are asked for, so the same trials give the same values after any restart."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.engine.sweeps.asking import TriedTrial
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.matrix import Draw, DrawKind, NumberRange, Parameter, Values
from stoker.model.job.search import SamplerKind, Search


def ask(job: Job, tried: Sequence[TriedTrial], first: int, count: int) -> list[Values]:
    """The values of the next trials, which have the numbers from `first` on."""
    matrix, search = job.matrix, job.search
    assert matrix is not None and search is not None
    try:
        import optuna  # an extra, and slow to import

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of experimental features: nobody would read them
            return _asked(optuna, job, tried, range(first, first + count))
    except ImportError as error:
        what = "Optuna" if error.name == "optuna" else f"`{error.name}`, for sampler `{search.sampler}`,"
        message = f"{what} is missing: the server's Python does not have it"
        hint = "pip install 'stoker[optuna]'" if error.name == "optuna" else f"pip install {error.name}"
        raise BadInput(message, hint=hint, cause=Cause.PACKAGE_MISSING) from error


def _asked(optuna: Any, job: Job, tried: Sequence[TriedTrial], numbers: range) -> list[Values]:
    matrix, search = job.matrix, job.search
    assert matrix is not None and search is not None
    space = {name: _distribution(optuna, one) for name, one in matrix.parameters.items()}
    study = optuna.create_study(direction="minimize" if search.lower_is_better else "maximize")
    for one in tried:
        values = one.trial.values
        params = {name: _value(text, values[name]) for name, text in matrix.parameters.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, **_outcome(optuna, one)))
    found: list[Values] = []
    for number in numbers:
        study.sampler = _sampler(optuna, search, zlib.crc32(f"{matrix.draws_seed}/{number}".encode()))
        asked = study.ask(space).params
        found.append({name: _text(one, asked[name]) for name, one in matrix.parameters.items()})
    return found


def _outcome(optuna: Any, one: TriedTrial) -> Mapping[str, Any]:
    states = optuna.trial.TrialState
    if not one.state.ended:
        return {"state": states.RUNNING}
    return {"state": states.FAIL} if one.score is None else {"state": states.COMPLETE, "value": one.score}


def _sampler(optuna: Any, search: Search, seed: int) -> Any:
    match search.sampler:
        case SamplerKind.TPE:
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        case SamplerKind.GP:
            return optuna.samplers.GPSampler(seed=seed)
        case SamplerKind.RANDOM:
            return optuna.samplers.RandomSampler(seed=seed)


def _distribution(optuna: Any, one: Parameter) -> Any:
    kinds = optuna.distributions
    if isinstance(one, NumberRange):
        return kinds.IntDistribution(one.first, one.first + (len(one) - 1) * one.step, step=one.step)
    if not isinstance(one, Draw):
        return kinds.CategoricalDistribution(one)
    if one.kind is DrawKind.INTEGER:
        return kinds.IntDistribution(int(one.least), int(one.most))
    return kinds.FloatDistribution(one.least, one.most, log=one.kind is DrawKind.LOG_UNIFORM)


def _value(one: Parameter, text: str) -> Any:
    if isinstance(one, NumberRange) or (isinstance(one, Draw) and one.kind is DrawKind.INTEGER):
        return int(text)
    return float(text) if isinstance(one, Draw) else text


def _text(one: Parameter, value: Any) -> str:
    """As the script gets it: short, and never outside of its bounds because of that."""
    if not isinstance(one, Draw) or one.kind is DrawKind.INTEGER:
        return str(value)
    return repr(min(max(float(f"{value:.6g}"), one.least), one.most))
