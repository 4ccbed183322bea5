"""An Azure ML job in YAML (v2: `command` and `sweep`), as a job file; the search space of a sweep becomes a matrix."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from stoker.client.importing.azureparts import AzureJob, environment, inputs, outputs
from stoker.client.importing.translation import Translation, experiment, inside, shell_variables, unwrapped
from stoker.client.submit.yamltree import Misread, parse
from stoker.errors import JobInvalid
from stoker.model.job.fields import Plain
from stoker.model.job.search import METRIC

_REFUSED = {
    "pipeline": "a command or sweep job: import each step's job by itself, and start them one after the other",
    "automl": "a command or sweep job: write the training as a script",
    "spark": "a command or sweep job: Stoker does not run Spark",
}
_REFERENCE = re.compile(r"\$\{\{\s*([\w.]+)\s*\}\}")
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.S)
_KNOWN = {"$schema", "type", "command", "name", "experiment_name", "display_name", "description", "component", "trial"}
_KNOWN |= {"search_space", "sampling_algorithm", "objective", "early_termination"}
_INSTEAD = {
    "services": "open a shell with `stoker ssh RUN`, or run a command with `stoker exec RUN`",
    "identity": "name the variables that the script needs in `secrets`",
    "tags": "put what you look for into `name`",
    "properties": "put what you look for into `name`",
    "parent_job_name": "a run has no parent; runs with the same `name` are one experiment",
    "is_deterministic": "each `stoker run` is a new run",
    "schedule": "start `stoker run` with `cron`",
    "trigger": "start `stoker run` with `cron`",
}


def translated(text: str, file: str, folder: str = ".") -> Translation:
    """`folder` leads from where the job file will be to the original. Raises JobInvalid with file and line."""
    into = Translation(file)
    try:
        tree = parse(text)
    except Misread as error:
        raise JobInvalid([error.problem], file=file) from None
    if tree.repeated:
        raise JobInvalid(tree.repeated, file=file)
    job = AzureJob(tree, into, PurePosixPath(folder))
    if not isinstance(tree.data, Mapping):
        raise into.refuse(1, "job", tree.data, "a mapping with `command`")
    kind = job.text("type") or ("pipeline" if "jobs" in tree.data else "command")
    if kind in _REFUSED or kind not in ("command", "sweep"):
        raise into.refuse(job.line("type"), "type", kind, _REFUSED.get(kind, "`command` or `sweep`"))
    trial = "trial." if kind == "sweep" else ""
    _names(job)
    _places(job, trial)
    values, kinds = inputs(job), outputs(job)
    if trial:
        search(job)
    environment(job, f"{trial}environment")
    _ranks(job, trial)
    _machine(job, trial)
    _limits(job, sweep=bool(trial))
    _variables(job, trial)
    _command(job, f"{trial}command", values, kinds)
    _rest(job, trial)
    return into


def _names(job: AzureJob) -> None:
    into = job.into
    given = [one for one in ("experiment_name", "name", "display_name") if job.text(one)]
    into.put("name", experiment(job.text(given[0]) if given else PurePosixPath(into.file).stem))
    for one in given[1:]:
        job.lack(one, "a run is called after `name`, with a number; `stoker run --name` calls it otherwise")
    if described := job.text("description"):
        into.notes.append(described)


def _places(job: AzureJob, trial: str) -> None:
    code = job.text(f"{trial}code")
    if code and (":" in code or code.startswith("/")):
        job.lack(f"{trial}code", "download it, and name its folder in `source`")
    elif code:
        job.code = os.path.normpath(job.folder / code)
    if job.code != ".":
        job.into.put("source", job.code, "the folder to upload, where the script runs")
    job.into.put("outputs", "outputs", "downloaded when the run ends")
    job.into.put("checkpoints", "checkpoints", "saved during the run, and restored before a restart")


def _ranks(job: AzureJob, trial: str) -> None:
    key = f"{trial}distribution"
    kind = (job.text(f"{key}.type") or job.text(f"{key}.distribution_type")).lower()
    if not job.get(key):
        return
    if kind in ("pytorch", "mpi"):
        job.into.put("launcher", "torchrun" if kind == "pytorch" else "mpi")
        if count := job.whole(f"{key}.process_count_per_instance"):
            job.into.put("processes", count, "ranks per node")
    elif kind == "tensorflow":
        if count := job.whole(f"{key}.worker_count"):
            job.into.put("nodes", count, "the workers")
        job.lack(key, "Stoker sets RANK and WORLD_SIZE, not TF_CONFIG: write it in the script from them")
    else:
        job.lack(key, "use `launcher: torchrun` or `mpi`, or start it in `run`")
    job.rest(
        key, {"type", "distribution_type", "process_count_per_instance", "worker_count"}, "Stoker starts the ranks"
    )


def _machine(job: AzureJob, trial: str) -> None:
    into = job.into
    size = ""
    for key in dict.fromkeys(("resources", f"{trial}resources")):
        if count := job.whole(f"{key}.instance_count"):
            into.put("nodes", count)
        size = job.text(f"{key}.instance_type") or size
        places = job.get(f"{key}.locations")
        if isinstance(places, list) and len(places) == 1:
            into.put("region", str(places[0]))
        elif places:
            job.lack(f"{key}.locations", "a job names one `region`, or none")
        if job.get(f"{key}.shm_size"):
            job.lack(f"{key}.shm_size", "containers share the memory of their node")
        job.rest(
            key, {"instance_count", "instance_type", "shm_size", "locations"}, "nothing in a job file stands for it"
        )
    if size:
        into.put("size", size.split(",")[0].strip())
    named = job.text("compute").removeprefix("azureml:").rpartition("/")[2]
    if not named or named == "serverless":
        return into.put("on", "azureml", "the workspace in azureml.json")
    if named == "local":
        return into.put("on", "local")
    into.put("on", re.sub(r"[^a-z0-9_.-]", "-", named.lower()).strip("-_."), "the cluster of the command above")
    words = f"--provider azureml --setting {shlex.quote(f'compute={named}')}"
    into.notes.append(f"Once: stoker cluster create {into.values['on']} {words}")
    return None


def _limits(job: AzureJob, *, sweep: bool) -> None:
    key = "limits.trial_timeout" if sweep else "limits.timeout"
    if seconds := job.whole(key):
        job.into.put("time_limit", f"{seconds}s", "the longest an attempt may run")
    if sweep and job.get("limits.timeout"):
        job.lack("limits.timeout", "`stoker sweep cancel` ends a sweep; `budget` limits what it costs")
    tier = job.text("queue_settings.job_tier").lower()
    if tier == "spot":
        job.into.put("spot", True)
    elif tier and tier != "null":
        job.lack("queue_settings.job_tier", "without `spot`, machines are on-demand")
    priority = job.text("queue_settings.priority").lower()
    if priority in ("low", "high"):
        job.into.put("priority", priority)
    elif priority not in ("", "medium"):
        job.lack("queue_settings.priority", "use `priority: low`, `normal` or `high`")
    job.rest("queue_settings", {"job_tier", "priority"}, "nothing in a job file stands for it")
    job.rest("limits", {"timeout", "trial_timeout", "max_total_trials", "max_concurrent_trials"}, "unknown to Stoker")


def _variables(job: AzureJob, trial: str) -> None:
    key = f"{trial}environment_variables"
    for name, value in job.mapping(key).items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise job.wrong(f"{key}.{name}", name, "a variable's name")
        job.into.env(name, job.scalar(f"{key}.{name}", value), job.line(f"{key}.{name}"))


def _command(job: AzureJob, key: str, values: Mapping[str, str], kinds: Mapping[str, str]) -> None:
    command = job.text(key)
    if not command.strip():
        raise job.wrong(key, job.get(key), "a command, such as `python train.py`")
    parameters = job.mapping("search_space")

    def referred(found: re.Match[str]) -> str:
        kind, _, name = found[1].partition(".")
        if kind == "inputs" and name in values:
            return values[name]
        if kind == "outputs" and name in kinds:
            return kinds[name]
        if kind == "search_space" and name in parameters:
            return f"${{matrix.{name}}}"
        raise job.wrong(key, f"`{found[0]}`", "an input, an output or a parameter of the search space")

    def optional(found: re.Match[str]) -> str:
        names = [one.partition(".")[2] for one in _REFERENCE.findall(found[1])]
        if all(name in values or name in kinds or name in parameters for name in names):
            return found[1]
        job.into.lack(job.line(key), found[0], "the input has no value, so the argument is left out")
        return ""

    command = shell_variables(_OPTIONAL.sub(optional, command)).strip()
    command = _REFERENCE.sub(referred, command)
    if started := unwrapped(command):
        _launched(job, key, started.launcher, started.options)
        command = started.command if started.launcher in ("torchrun", "mpi") else command
    below = job.code if job.root else "."
    folders = [one for one in kinds.values() if one != "${outputs}"]
    before = [f"mkdir -p {' '.join(folders)}"] if folders else []
    before += [f"cd {shlex.quote(inside(below, job.root))}"] if job.root and inside(below, job.root) != "." else []
    job.into.put("run", " && ".join([*before, command]) if before else command)


def _launched(job: AzureJob, key: str, launcher: str, options: Mapping[str, str]) -> None:
    if launcher not in ("torchrun", "mpi"):
        return
    job.into.put("launcher", launcher)
    for name, value in options.items():
        if name in ("nproc-per-node", "np", "n") and re.fullmatch(r"[1-9]\d{0,5}", value):
            job.into.put("processes", int(value), "ranks per node")
        elif name == "nproc-per-node":
            job.into.put("processes", "gpus", "one rank per GPU")
        else:
            job.into.lack(job.line(key), f"{launcher} --{name} {value}", "Stoker starts the ranks")


def _rest(job: AzureJob, trial: str) -> None:
    """What nobody has asked for yet."""
    handled = _KNOWN | job.seen
    for name in job.mapping(""):
        if name not in handled:
            job.lack(name, _INSTEAD.get(name, "nothing in a job file stands for it"))
    for name in job.mapping("trial") if trial else ():
        if f"trial.{name}" not in job.seen and name not in ("type", "$schema"):
            job.lack(f"trial.{name}", _INSTEAD.get(name, "nothing in a job file stands for it"))


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
    guided = _is_guided(job)
    if guided:
        choices, drawn = 1, True
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
    if guided:
        less = "-" if job.text("objective.goal").lower() == "minimize" else ""
        metric = f"{less}{job.text('objective.primary_metric')}"
        job.into.put("search", {"by": "optuna", "metric": metric}, "requires `stoker[optuna]` on the server")
    _method(job, drawn=drawn, guided=guided)


def _has_settings(job: AzureJob) -> bool:
    return isinstance(job.get("sampling_algorithm"), Mapping)


def _is_guided(job: AzureJob) -> bool:
    kind = job.text("sampling_algorithm.type" if _has_settings(job) else "sampling_algorithm").lower()
    return kind == "bayesian" and re.fullmatch(METRIC, job.text("objective.primary_metric")) is not None


def _method(job: AzureJob, *, drawn: bool, guided: bool) -> None:
    key = "sampling_algorithm.type" if _has_settings(job) else "sampling_algorithm"
    kind = job.text(key).lower()
    if not guided and (kind == "bayesian" or (kind == "grid" and drawn)):
        job.lack(key, "values are drawn at random" if drawn else "all combinations run")
    elif kind == "random" and not drawn:
        job.lack(key, "all combinations of listed values run")
    if _has_settings(job):
        job.rest("sampling_algorithm", {"type", "seed"} if drawn else {"type"}, "values are drawn at random, evenly")
    if not guided and (metric := job.text("objective.primary_metric")):
        goal = job.text("objective.goal").lower()
        job.lack("objective", f"{goal or 'compare'} it afterwards: `stoker results --metric {metric}`")
    job.rest("objective", {"primary_metric", "goal"}, "nothing in a job file stands for it")
    if job.get("early_termination") is not None:
        job.lack("early_termination", "use `search: {by: halving, …}` instead, or `stop_when` for a target")


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
