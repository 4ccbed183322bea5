"""Whether a run in a cloud could start: its own checks, and those of the store that its machines would use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from stoker.client.api.client import Client
from stoker.client.api.stores import Stores
from stoker.client.local import groundwork
from stoker.client.local.proving import Proof
from stoker.client.settings import Settings
from stoker.client.submit import jobfile
from stoker.errors import BadInput, StokerError
from stoker.model.job.job import Job
from stoker.model.node.node import Need
from stoker.model.run.run import Event
from stoker.model.workspace.finding import Finding, Verdict, failed
from stoker.model.workspace.groundwork import Asked
from stoker.model.workspace.store import FOLDER, KnownStore, is_twin, original

Say = Callable[[str], None]


def asked_of(cloud: str, settings: Settings, say: Say) -> Asked:
    """The account that runs there use. A twin is brought up if need be."""
    twin = groundwork.rehearse(settings, say) if is_twin(cloud) else None
    return Asked({}, twin=twin, folder=settings.home.root)


@contextmanager
def recorded(cloud: str, settings: Settings, file: Path | None) -> Iterator[None]:
    """What is asked of the cloud meanwhile goes to the file, without secrets; None: nothing is written."""
    if file is None:
        yield
        return
    if not file.absolute().parent.is_dir():
        raise BadInput(f"the folder of {file} does not exist", hint=f"mkdir -p {file.parent}")
    with groundwork.find(original(cloud)).recording(Asked({}, folder=settings.home.root), file):
        yield


def findings(cloud: str, settings: Settings, needs: tuple[Need, ...], say: Say) -> Iterator[Finding]:
    """One at a time: some of them take a cloud several seconds."""
    found = groundwork.find(original(cloud))
    asked = asked_of(cloud, settings, say)
    yield from found.preflight(asked, needs)
    yield from _store(cloud, settings, say)


def proof(cloud: str, settings: Settings, spend: Decimal, say: Say) -> Proof:
    """The proof that costs something, once everything else is right."""
    found, asked = groundwork.find(original(cloud)), asked_of(cloud, settings, say)
    return Proof(Client.connect(settings), cloud, spend, lambda key: found.drill(asked, key), say)


def needs_of(folder: Path) -> tuple[tuple[Need, ...], str]:
    """What a run needs, spot first, and what says so: the job file of the folder, where there is one."""
    path = folder / "stoker.yaml"
    if not path.is_file():
        return (Need(spot=True), Need()), ""
    return needs_for(jobfile.read(path, ()).job), path.name


def needs_for(job: Job) -> tuple[Need, ...]:
    return tuple(
        Need(
            spot=spot,
            cpus=job.cpus or 0,
            memory_gb=job.memory or 0.0,
            gpus=job.gpus or (1 if job.gpu else 0),
            gpu=job.gpu or "",
            size=job.size or "",
        )
        for spot in (True, False)
    )


def _store(cloud: str, settings: Settings, say: Say) -> Iterator[Finding]:
    try:
        client = Client.connect(settings)
        stores = Stores(client.connection)
        known = _used(cloud, settings, client, stores, say)
        if known.name == FOLDER:
            advice = "stoker store add blob az://ACCOUNT/CONTAINER --use"
            yield Finding("store", Verdict.FAIL, f"{known.url} is a folder: machines cannot reach it", advice)
            return
        found = stores.check(known.name)
    except StokerError as error:
        yield Finding("store", Verdict.FAIL, error.message, error.hint)
        return
    bad = [one for one in found if one.verdict is not Verdict.OK]
    if not bad:
        reach = next((one.found for one in found if one.name == "reach"), "")
        yield Finding("store", Verdict.OK, f"{known.name} at {known.url}: {reach}; nodes get tokens of their own")
    for one in bad:
        yield Finding(f"store {one.name}", one.verdict, one.found, one.advice)


def _used(cloud: str, settings: Settings, client: Client, stores: Stores, say: Say) -> KnownStore:
    name = ""
    if is_twin(cloud):
        from stoker.client.local import (
            rehearsal,
            twin,  # who works in the cloud has no use for them
        )

        told, _ = twin.up(settings, twin.Wanted(blob=True))
        name = rehearsal.store(told, settings, client.connection, say)
    every = stores.all()
    return next((one for one in every if (one.name == name if name else one.workspace)), every[0])


# The report of a preflight and its proof as Markdown, to send to a colleague: no secrets, and no ids. Pure.

_GUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bsig=)[^&\s]+")


def markdown(
    cloud: str, version: str, at: datetime, findings: Sequence[Finding], events: Sequence[Event] = (), home: str = ""
) -> str:
    """`home` is a path of this computer that nobody else needs to see."""
    verdict = "a run could **not** start" if failed(findings) else "runs can start"
    lines = [
        f"# Stoker {version} on `{cloud}`: {verdict}",
        "",
        f"Checked on {at:%Y-%m-%d %H:%M} UTC with `stoker doctor`.",
        "",
        "| check | | found | what to do |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.verdict} | {_cell(one.found)} | {_cell(one.advice)} |" for one in findings),
    ]
    if events:
        lines += ["", "## What happened to the run", "", "| UTC | event | |", "|---|---|---|"]
        lines += [f"| {one.at:%H:%M:%S} | {one.kind} | {_cell(one.text)} |" for one in events]
    text = "\n".join(lines) + "\n"
    return _plain(text.replace(home, "~") if home else text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    text = _TOKEN.sub("<secret>", _MAIL.sub("<mail>", text))
    return _GUID.sub(lambda found: f"{found[1]}-…", text)
