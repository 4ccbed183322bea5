"""A sweep job of Azure ML: its search space as a matrix."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from stoker.client.importing.azureparts import AzureJob
from stoker.model.job.fields import Plain

_DRAWN = {"uniform", "quniform", "loguniform", "qloguniform", "normal", "qnormal", "lognormal", "qlognormal", "randint"}


def search(job: AzureJob) -> None:
    matrix: dict[str, Plain] = {}
    choices, drawn = 1, False
    for name in job.mapping("search_space"):
        key = f"search_space.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in ("zip", "exclude", "draws", "draws_seed"):
            raise job.wrong(key, name, "a name of letters, digits and `_`")
        matrix[name] = _parameter(job, key)
        drawn |= isinstance(matrix[name], Mapping)
        choices *= len(matrix[name]) if isinstance(matrix[name], list) else 1
    if not matrix:
        raise job.wrong("search_space", job.get("search_space"), "parameters with their values")
    total = job.whole("limits.max_total_trials")
    if drawn:
        matrix["draws"] = max(1, (total or 10) // choices)
        if seed := job.text("sampling_algorithm.seed") if _has_settings(job) else "":
            matrix["draws_seed"] = int(seed) if re.fullmatch(r"\d{1,9}", seed) else 0
    trials = choices * int(str(matrix.get("draws", 1)))
    if total and trials != total:
        text = f"the sweep has {trials} trials: every combination of what is listed; remove values or set `draws`"
        job.lack("limits.max_total_trials", text)
    job.into.put("matrix", matrix, f"{trials} trials")
    if most := job.whole("limits.max_concurrent_trials"):
        job.into.put("max_parallel", most, "how many trials run at the same time")
    _method(job, drawn=drawn)


def _has_settings(job: AzureJob) -> bool:
    return isinstance(job.get("sampling_algorithm"), Mapping)


def _method(job: AzureJob, *, drawn: bool) -> None:
    key = "sampling_algorithm.type" if _has_settings(job) else "sampling_algorithm"
    kind = job.text(key).lower()
    if kind == "bayesian" or (kind == "grid" and drawn):
        job.lack(key, "values are drawn at random" if drawn else "all combinations run")
    elif kind == "random" and not drawn:
        job.lack(key, "all combinations of listed values run")
    if _has_settings(job):
        job.rest("sampling_algorithm", {"type", "seed"} if drawn else {"type"}, "values are drawn at random, evenly")
    if metric := job.text("objective.primary_metric"):
        goal = job.text("objective.goal").lower()
        job.lack("objective", f"{goal or 'compare'} it afterwards: `stoker results --metric {metric}`")
    job.rest("objective", {"primary_metric", "goal"}, "nothing in a job file stands for it")
    if job.get("early_termination") is not None:
        job.lack("early_termination", "trials are not compared while they run; `stop_when` ends one at a target")


def _parameter(job: AzureJob, key: str) -> Plain:
    kind = job.text(f"{key}.type").lower()
    if kind == "choice":
        values = job.get(f"{key}.values")
        if not isinstance(values, list) or not values:
            raise job.wrong(f"{key}.values", values, "a list of values")
        job.rest(key, {"type", "values"}, "nothing in a job file stands for it")
        return [_listed(job, f"{key}.values", one) for one in values]
    if kind not in _DRAWN:
        raise job.wrong(f"{key}.type", kind or None, "`choice`, `uniform`, `loguniform`, `randint` or another one")
    if kind == "randint":
        job.rest(key, {"type", "upper"}, "nothing in a job file stands for it")
        upper = job.whole(f"{key}.upper")
        return {"integer": [0, upper - 1]} if upper > 1 else ["0"]
    if kind.endswith("normal"):
        return _normal(job, key, kind)
    job.rest(key, {"type", "min_value", "max_value", "q"}, "nothing in a job file stands for it")
    least, most = _number(job, f"{key}.min_value"), _number(job, f"{key}.max_value")
    if least >= most:
        raise job.wrong(f"{key}.max_value", job.get(f"{key}.max_value"), "a number above `min_value`")
    return _between(job, key, kind, least, most)


def _between(job: AzureJob, key: str, kind: str, least: float, most: float) -> Plain:
    step = job.get(f"{key}.q")
    if "log" in kind:
        if step is not None:
            job.lack(f"{key}.q", "values are not rounded: round them in the script")
        return {"log_uniform": [_exp(job, key, least), _exp(job, key, most)]}
    if step is None:
        return {"uniform": [_short(least), _short(most)]}
    if _number(job, f"{key}.q") == 1 and least.is_integer() and most.is_integer():
        return {"integer": [int(least), int(most)]}
    job.lack(f"{key}.q", "values are not rounded: round them in the script")
    return {"uniform": [_short(least), _short(most)]}


def _normal(job: AzureJob, key: str, kind: str) -> Plain:
    """The nearest that there is: evenly over two standard deviations to each side."""
    mu, sigma = _number(job, f"{key}.mu"), _number(job, f"{key}.sigma")
    if sigma <= 0:
        raise job.wrong(f"{key}.sigma", job.get(f"{key}.sigma"), "a number above 0")
    job.rest(key, {"type", "mu", "sigma", "q"}, "nothing in a job file stands for it")
    job.lack(f"{key}.type", "no normal distribution: drawn evenly within two standard deviations")
    return _between(job, key, "loguniform" if "log" in kind else "uniform", mu - 2 * sigma, mu + 2 * sigma)


def _listed(job: AzureJob, key: str, value: Plain) -> Plain:
    """A number keeps its spelling."""
    text = job.scalar(key, value)
    return text if isinstance(value, str | bool) else value


def _exp(job: AzureJob, key: str, exponent: float) -> float:
    """Bounds of Azure ML are exponents of e."""
    if abs(exponent) > 600:
        raise job.wrong(key, str(exponent), "an exponent of e within 600")
    return float(f"{math.exp(exponent):.6g}")


def _short(value: float) -> float:
    return float(f"{value:.12g}")


def _number(job: AzureJob, path: str) -> float:
    value = job.get(path)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise job.wrong(path, value, "a number")
    return number
