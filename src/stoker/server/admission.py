"""What can be known to be impossible before a run is taken in: every problem names its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stoker.engine.money.fuse import dollars, least_start
from stoker.engine.offers.market import needs
from stoker.errors import BadInput, Conflict, JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job, Launcher
from stoker.model.node.node import Need, Offer
from stoker.model.node.orders import Terminal
from stoker.model.workspace.store import is_twin, original
from stoker.providers import Provider

_STARTERS = (Launcher.TORCHRUN, Launcher.MPI)  # which start processes of their own
_GPUS = ("T4", "A10", "V100", "A100", "H100")  # that people ask for: whether a provider has one is asked of it


def admit(job: Job, providers: Mapping[str, Provider], *, data_follows: bool = False) -> Offer:
    """The offer the job would take. Raises JobInvalid with everything that stands in its way; with `data_follows`, data
    that is yet to be put into the store does not."""
    provider = providers.get(job.on)
    if provider is None and is_twin(job.on) and original(job.on) in providers:
        clouds = ", ".join(f"`{original(name)}`" for name in providers if is_twin(name))
        raise JobInvalid([Problem("on", f"`{original(job.on)}`", f"a cloud that has a twin: {clouds}")])
    if provider is None:
        expected = "a provider or cluster: " + ", ".join(f"`{name}`" for name in providers)
        raise JobInvalid([Problem("on", f"`{job.on}`", expected, nearest(job.on, providers))])
    problems = [*_node_problems(job, provider), *([] if data_follows else _data_problems(job, provider))]
    if problems:
        raise JobInvalid(problems)
    found = [provider.offers(need) for need in needs(job)]
    _check_budget(job, [offer for offers in found for offer in offers])
    _check_deadline(job, [offer for offers in found for offer in offers])
    for offers in found:
        if offers:
            return min(offers, key=lambda offer: offer.usd_per_hour)
    raise JobInvalid([_unfit(job, provider)])


def check_terminal(job: Job, terminal: Terminal, providers: Mapping[str, Provider]) -> None:
    """Raises Conflict where the script of such a job cannot have the terminal of whoever submits it."""
    if not terminal.sound:
        raise BadInput(f"a terminal of the kind `{terminal.kind[:100]}` is not known", hint="export TERM=xterm")
    if not providers[job.on].features.terminal:
        near = next((name for name, one in providers.items() if one.features.terminal), "")
        hint = "submit it without, and look into its node: `stoker exec RUN -- COMMAND`, or `stoker ssh RUN`"
        hint += f"; to debug it here: `stoker run --interactive --on {near}`" if near else ""
        raise Conflict(f"`--interactive`: a script on `{job.on}` cannot have your terminal", hint=hint)
    if job.nodes * (job.processes if isinstance(job.processes, int) else 2) > 1 or job.launcher in _STARTERS:
        found = f"`processes: {job.processes}`" if job.processes != 1 else f"`launcher: {job.launcher}`"
        hint = "`--set processes=1 --set launcher=plain`"
        raise Conflict(f"`--interactive` is for one process, and the job has {found}", hint=hint)


def _unfit(job: Job, provider: Provider) -> Problem:
    """Nothing fits: which of the wishes is it that nothing fits with?"""
    need = needs(job)[0]
    if need.region and (elsewhere := provider.offers(replace(need, region=""))):
        places = sorted({offer.place for offer in elsewhere})
        expected = f"a region that has {_spelled(replace(job, region=None))}, such as {', '.join(places[:5])}"
        return Problem("region", f"`{job.region}`", expected, nearest(need.region, places))
    if need.size and (others := provider.offers(Need(nodes=need.nodes, spot=need.spot, region=need.region))):
        sizes = sorted({offer.size for offer in others})
        return Problem("size", f"`{job.size}`", f"a size that `{job.on}` has", nearest(need.size, sizes))
    if need.gpu and (known := [one for one in _GPUS if provider.offers(replace(need, gpu=one))]):
        names = ", ".join(f"`{one}`" for one in known)
        return Problem("gpu", f"`{job.gpu}`", f"a GPU that `{job.on}` has, such as {names}", nearest(need.gpu, known))
    return Problem("on", f"`{job.on}`", f"a provider that has {_spelled(job)}")


def _check_budget(job: Job, offers: list[Offer]) -> None:
    """A run that could not even start, save and be released would only be paused."""
    if job.budget is None or not offers:
        return
    cheapest = min(offers, key=least_start)
    needed = least_start(cheapest)
    if job.budget < needed:
        what = f"the shortest run on the cheapest offer, a {cheapest.size} in {cheapest.place}, costs that"
        expected = f"at least {dollars(needed, up=True)}: {what}"
        raise JobInvalid([Problem("budget", f"`{dollars(job.budget)}`", expected)])


def _check_deadline(job: Job, offers: list[Offer]) -> None:
    """One that would be over before any machine is there cannot be met by any choice."""
    ready_s = min((offer.ready_s for offer in offers), default=0.0)
    if job.deadline is not None and job.deadline <= ready_s:
        expected = f"more than {ready_s:.0f}s: so long a machine takes to start, before your script does anything"
        raise JobInvalid([Problem("deadline", f"`{job.deadline:g}s`", expected)])


def _spelled(job: Job) -> str:
    """What the job needs of a machine, in words."""
    given = {"cpus": job.cpus, "GB of memory": job.memory, "gpus": job.gpus, "gpu": job.gpu}
    named = [f"{value} {name}" for name, value in given.items() if value]
    named += [f"the size {job.size}"] if job.size else []
    named += [f"the region {job.region}"] if job.region else []
    return ", ".join(named) or "what the job needs"


def no_effect(job: Job, provider: Provider) -> list[str]:
    """What the job asks for and gets no answer to there: no reason to refuse it, but one to say so."""
    given = {"spot": job.spot, "deadline": job.deadline} if not provider.features.spot else {}
    return [f"`{name}` has no effect on `{job.on}`" for name, value in given.items() if value]


def _node_problems(job: Job, provider: Provider) -> list[Problem]:
    problems: list[Problem] = []
    most = provider.features.most_nodes
    if most is not None and job.nodes > most:
        problems.append(Problem("nodes", f"`{job.nodes}`", f"at most {most} on `{job.on}`"))
    if not provider.features.containers:
        for field in ("image", "dockerfile"):
            if value := getattr(job.environment, field):
                expected = f"`requirements` or `python`: `{job.on}` runs no containers"
                problems.append(Problem(f"environment.{field}", f"`{value}`", expected))
    return problems


def to_store(job: Job, provider: Provider) -> list[str]:
    """Inputs on the submitting computer that the provider's machines cannot read there."""
    if provider.features.shares_files:
        return []
    paths = {name: given.path or "" for name, given in job.data.items()}
    # What a URL is, and whether it is there, is found out when it is pinned.
    return [name for name, path in paths.items() if path and ("://" not in path or path.startswith("file://"))]


def _data_problems(job: Job, provider: Provider) -> list[Problem]:
    problems: list[Problem] = []
    for name in to_store(job, provider):
        path = job.data[name].path or ""
        there = f"something that `{job.on}` can reach; {_put(job, name, path)}"
        problems.append(Problem(f"data.{name}", f"`{path}`", there))
    return problems


def _put(job: Job, name: str, path: str) -> str:
    """How a folder of this computer becomes something that nodes elsewhere can read."""
    dataset, store = name.lower(), " --store twin" if is_twin(job.on) else ""
    command = f"stoker data put {path.removeprefix('file://')} --name {dataset}{store}"
    return f"`{command}` brings it there, and `{name}: {{dataset: {dataset}}}` reads it"
