"""Checks that a run is possible before it is accepted, and pins its inputs: every problem names its field."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from stoker.containers import troubles
from stoker.containers.commandline import foreign
from stoker.engine.money.fuse import dollars, least_start
from stoker.engine.nodes.elastic import PATIENCE_S
from stoker.engine.offers.market import fits_whole, needs
from stoker.errors import BadInput, Conflict, JobInvalid, Problem
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job, Launcher
from stoker.model.node import Need, Offer, Pool
from stoker.model.orders import Terminal
from stoker.model.workspace.store import is_twin, original
from stoker.providers import Provider, surveyed

_STARTERS = (Launcher.TORCHRUN, Launcher.MPI)  # start processes themselves
_GPUS = ("T4", "A10", "V100", "A100", "H100")  # common requests: the provider decides whether it has one


def admit(
    job: Job, providers: Mapping[str, Provider], *, data_follows: bool = False, pool: Pool | None = None
) -> Offer:
    """The offer that the job would take. Raises JobInvalid with all problems; with `data_follows`, data that will be
    uploaded later is none. `pool` is the cluster that it was submitted to."""
    provider = providers.get(job.on)
    if provider is None and is_twin(job.on) and original(job.on) in providers:
        clouds = [original(name) for name in providers if is_twin(name)]
        expected = "a cloud with a twin: " + ", ".join(f"`{name}`" for name in clouds)
        hint = f"add `--on {clouds[0]}`" if clouds else ""
        raise JobInvalid([Problem("on", f"`{original(job.on)}`", expected)], hint=hint)
    if provider is None:
        expected = "a provider or cluster: " + ", ".join(f"`{name}`" for name in providers)
        raise JobInvalid([Problem("on", f"`{job.on}`", expected, nearest(job.on, providers))])
    problems = [*_node_problems(job, provider), *([] if data_follows else _data_problems(job, provider))]
    if problems:
        raise JobInvalid(problems)
    found = [provider.offers(need) for need in needs(job, pool)]
    _check_room(job, provider, [offer for offers in found for offer in offers])
    _check_budget(job, [offer for offers in found for offer in offers])
    _check_deadline(job, [offer for offers in found for offer in offers])
    for offers in found:
        if offers:
            return min(offers, key=lambda offer: offer.usd_per_hour)
    raise JobInvalid([_unfit(job, provider, pool)])


def check_terminal(job: Job, terminal: Terminal, providers: Mapping[str, Provider]) -> None:
    """Raises Conflict where the script of such a job cannot use the terminal of the submitter."""
    if not terminal.sound:
        raise BadInput(f"unknown terminal type `{terminal.kind[:100]}`", hint="export TERM=xterm")
    if not providers[job.on].features.terminal:
        near = next((name for name, one in providers.items() if one.features.terminal), "")
        hint = (
            "submit it without `--interactive`, and inspect its node: `stoker exec RUN -- COMMAND`, or `stoker ssh RUN`"
        )
        hint += f"; to debug it here: `stoker run --interactive --on {near}`" if near else ""
        raise Conflict(f"`--interactive` is not supported on `{job.on}`", hint=hint, cause=Cause.NOT_INTERACTIVE)
    if job.environment.contained:
        hint = "submit it without `--interactive`, and inspect it: `stoker exec RUN -- COMMAND`"
        raise Conflict("`--interactive` is not supported in a container", hint=hint, cause=Cause.NOT_INTERACTIVE)
    if job.most_nodes * (job.processes if isinstance(job.processes, int) else 2) > 1 or job.launcher in _STARTERS:
        found = f"`processes: {job.processes}`" if job.processes != 1 else f"`launcher: {job.launcher}`"
        hint = "`--set processes=1 --set launcher=plain`"
        raise Conflict(
            f"`--interactive` requires a single process, but the job has {found}",
            hint=hint,
            cause=Cause.NOT_INTERACTIVE,
        )


def _unfit(job: Job, provider: Provider, pool: Pool | None = None) -> Problem:
    """Nothing fits: find the setting that excludes everything."""
    need = needs(job, pool)[0]
    if need.region and (elsewhere := provider.offers(replace(need, region=""))):
        places = sorted({offer.place for offer in elsewhere})
        expected = f"a region that has {_spelled(replace(job, region=None))}, such as {', '.join(places[:5])}"
        return Problem("region", f"`{job.region}`", expected, nearest(need.region, places))
    if need.size and (
        others := provider.offers(replace(Need(nodes=need.nodes, spot=need.spot, pool=pool), region=need.region))
    ):
        sizes = sorted({offer.size for offer in others})
        return Problem("size", f"`{job.size}`", f"a size that `{job.on}` has", nearest(need.size, sizes))
    if need.gpu and (known := [one for one in _GPUS if provider.offers(replace(need, gpu=one))]):
        names = ", ".join(f"`{one}`" for one in known)
        return Problem("gpu", f"`{job.gpu}`", f"a GPU that `{job.on}` has, such as {names}", nearest(need.gpu, known))
    return Problem("on", f"`{job.on}`", f"a provider that has {_spelled(job)}")


def _check_budget(job: Job, offers: list[Offer]) -> None:
    """Refuses a budget that does not pay for one start, save and release: such a run would only be paused."""
    if job.budget is None or not offers:
        return
    cheapest = min(offers, key=least_start)
    needed = least_start(cheapest) * job.least_nodes
    if job.budget < needed:
        each = f"a {cheapest.size}" if job.least_nodes == 1 else f"{job.least_nodes} {cheapest.size}"
        what = f"the shortest run on the cheapest offer, {each} in {cheapest.place}, costs that"
        expected = f"at least {dollars(needed, up=True)}: {what}"
        raise JobInvalid([Problem("budget", f"`{dollars(job.budget)}`", expected)])


def _check_room(job: Job, provider: Provider, offers: list[Offer]) -> None:
    """Refuses a gang that is larger than its provider's limit, and so would wait forever."""
    least = job.least_nodes
    if least == 1 or provider.features.shares_files or not offers or any(fits_whole(one, least) for one in offers):
        return
    widest = max(offers, key=lambda offer: offer.slots or 0)
    expected = f"at most {widest.slots} of {widest.size} in {widest.place}: that is the quota there"
    raise JobInvalid([Problem("nodes", f"`{job.nodes}`", expected)])


def _check_deadline(job: Job, offers: list[Offer]) -> None:
    """A deadline before any machine could be ready cannot be met by any choice."""
    ready_s = min((offer.ready_s for offer in offers), default=0.0)
    if job.deadline is not None and job.deadline <= ready_s:
        expected = f"more than {ready_s:.0f}s: a machine takes that long to start, before your script runs"
        raise JobInvalid([Problem("deadline", f"`{job.deadline:g}s`", expected)])


def _spelled(job: Job) -> str:
    """The job's requirements of a machine, as text."""
    given = {"cpus": job.cpus, "GB of memory": job.memory, "gpus": job.gpus, "gpu": job.gpu}
    named = [f"{value} {name}" for name, value in given.items() if value]
    named += [f"the size {job.size}"] if job.size else []
    named += [f"the region {job.region}"] if job.region else []
    return ", ".join(named) or "what the job needs"


def width_note(job: Job, free: int | None) -> list[str]:
    """With how many nodes a job starts that leaves their number open."""
    if not job.is_elastic:
        return []
    most, least = job.most_nodes, job.least_nodes
    now = f"; {free} are available now" if free is not None and free < most else ""
    wait = f"with {most} nodes, or after {PATIENCE_S:.0f} s with as many as are available, at least {least}"
    return [f"`nodes: {job.nodes}`: starts and resumes {wait}{now}"]


def no_effect(job: Job, provider: Provider) -> list[str]:
    """Settings that the provider ignores: no reason to refuse the job, but one for a warning."""
    given = {"spot": job.spot, "deadline": job.deadline} if not provider.features.spot else {}
    return [f"`{name}` has no effect on `{job.on}`" for name, value in given.items() if value]


def _node_problems(job: Job, provider: Provider) -> list[Problem]:
    problems: list[Problem] = []
    most = provider.features.most_nodes
    if most is not None and job.most_nodes > most:
        problems.append(Problem("nodes", f"`{job.nodes}`", f"at most {most} on `{job.on}`"))
    if job.environment.contained and job.launcher is Launcher.MPI and job.most_nodes > 1:
        problems.append(Problem("nodes", f"`{job.nodes}`", "1: `launcher: mpi` in a container supports a single node"))
    if not provider.features.containers:
        for field in ("image", "dockerfile"):
            if value := getattr(job.environment, field):
                expected = f"`requirements` or `python`: `{job.on}` does not support containers"
                problems.append(Problem(f"environment.{field}", f"`{value}`", expected))
    kept = job.environment.kept or ""
    if kept and (kept.partition(":")[0] != job.on or not provider.features.keeps):
        expected = f"`image` or a file of packages: on `{job.on}` there is no environment of this name"
        problems.append(Problem("environment.kept", f"`{kept}`", expected))
    return problems


def check_software(job: Job, provider: Provider, *, locked: bool) -> None:
    """Raises JobInvalid where new machines of the provider cannot install what the job names."""
    file = job.environment.requirements or ""
    if file.endswith((".yml", ".yaml")) and not locked and provider.features.market:
        expected = (
            f"packages under `pip:` alone: machines of `{job.on}` have no conda. Activate that environment "
            "here and leave out `environment`, or use an image"
        )
        raise JobInvalid([Problem("environment.requirements", f"`{file}`", expected)])


def engine_notes(job: Job, provider: Provider, pool: Pool | None = None) -> list[str]:
    """What runs the container of a job, where that is known before a machine is requested. Raises JobInvalid where
    nothing can."""
    wanted, known = job.environment, surveyed(provider)
    if not wanted.contained or known is None:
        return []
    image, field = wanted.image or "", "image" if wanted.image else "dockerfile"
    seen = known.engines(image, pool)
    if seen is None:
        return []
    if not seen or seen[0].trouble:
        why, hint = troubles(seen)
        raise JobInvalid([Problem(f"environment.{field}", f"`{image or wanted.dockerfile}`", why)], hint=hint)
    engine = seen[0]
    if engine.image is None:
        what = f"pull `{image}` first" if image else f"build the image from `{wanted.dockerfile}`, unless it has it"
        return [f"{engine.name} {engine.version} will {what}"]
    if foreign(engine.image, engine):
        expected = f"an image for {engine.architecture}: this one is for {engine.image.architecture}"
        raise JobInvalid([Problem("environment.image", f"`{image}`", expected)])
    entry = shlex.join(engine.image.entrypoint)
    unused = f"; its entry point `{entry}` is not used: `run` can begin with it" if entry else ""
    return [f"{engine.name} {engine.version} runs `{image}`{unused}"]


def to_store(job: Job, provider: Provider) -> list[str]:
    """Inputs on the submitting computer that the provider's machines cannot read there."""
    if provider.features.shares_files:
        return []
    paths = {name: given.path or "" for name, given in job.data.items()}
    # Whether a URL exists is checked when it is pinned.
    return [name for name, path in paths.items() if path and ("://" not in path or path.startswith("file://"))]


def _data_problems(job: Job, provider: Provider) -> list[Problem]:
    problems: list[Problem] = []
    for name in to_store(job, provider):
        path = job.data[name].path or ""
        there = f"something that `{job.on}` can reach; {_put(job, name, path)}"
        problems.append(Problem(f"data.{name}", f"`{path}`", there))
    return problems


def _put(job: Job, name: str, path: str) -> str:
    """How to upload a folder of this computer for nodes elsewhere."""
    dataset, store = name.lower(), " --store twin" if is_twin(job.on) else ""
    command = f"stoker data put {path.removeprefix('file://')} --name {dataset}{store}"
    return f"`{command}` uploads it, and `{name}: {{dataset: {dataset}}}` reads it"
