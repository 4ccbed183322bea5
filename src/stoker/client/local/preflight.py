"""Whether a run in a cloud could start: the provider's checks, and those of the store that its machines would use."""

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
from stoker.client.settings import ClientSettings
from stoker.client.submit import jobfile
from stoker.errors import BadInput, StokerError
from stoker.model.job.job import Job
from stoker.model.node.node import Need
from stoker.model.run.run import Event
from stoker.model.workspace.finding import CheckResult, Finding, failed
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.store import FOLDER, KnownStore, is_twin, original

Say = Callable[[str], None]


def asked_of(cloud: str, settings: ClientSettings, say: Say) -> GivenOptions:
    """The account that runs there use. A twin is started if necessary."""
    twin = groundwork.rehearse(settings, say) if is_twin(cloud) else None
    return GivenOptions({}, twin=twin, folder=settings.home.root)


@contextmanager
def recorded(cloud: str, settings: ClientSettings, file: Path | None) -> Iterator[None]:
    """Requests to the cloud meanwhile are recorded to the file, without secrets; None: nothing is written."""
    if file is None:
        yield
        return
    if not file.absolute().parent.is_dir():
        raise BadInput(f"the folder of {file} does not exist", hint=f"mkdir -p {file.parent}")
    with groundwork.find(original(cloud)).recording(GivenOptions({}, folder=settings.home.root), file):
        yield


def findings(cloud: str, settings: ClientSettings, needs: tuple[Need, ...], say: Say) -> Iterator[Finding]:
    """One at a time: some of them take a cloud several seconds."""
    found = groundwork.find(original(cloud))
    asked = asked_of(cloud, settings, say)
    yield from found.preflight(asked, needs)
    yield from _store(cloud, settings, say)


def proof(cloud: str, settings: ClientSettings, spend: Decimal, say: Say) -> Proof:
    """The proof that costs money, once all checks pass."""
    found, asked = groundwork.find(original(cloud)), asked_of(cloud, settings, say)
    return Proof(Client.connect(settings), cloud, spend, lambda key: found.drill(asked, key), say)


def needs_of(folder: Path) -> tuple[tuple[Need, ...], str]:
    """What a run needs, spot first, and where that is defined: the job file of the folder, if there is one."""
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


def _store(cloud: str, settings: ClientSettings, say: Say) -> Iterator[Finding]:
    try:
        client = Client.connect(settings)
        stores = Stores(client.connection)
        known = _used(cloud, settings, client, stores, say)
        if known.name == FOLDER:
            advice = "stoker store add blob az://ACCOUNT/CONTAINER --use"
            yield Finding(
                "store", CheckResult.FAIL, f"{known.url} is a folder: machines in a cloud cannot reach it", advice
            )
            return
        found = stores.check(known.name)
    except StokerError as error:
        yield Finding("store", CheckResult.FAIL, error.message, error.hint)
        return
    bad = [one for one in found if one.verdict is not CheckResult.OK]
    if not bad:
        reach = next((one.found for one in found if one.name == "reach"), "")
        yield Finding("store", CheckResult.OK, f"{known.name} at {known.url}: {reach}; each node gets its own token")
    for one in bad:
        yield Finding(f"store {one.name}", one.verdict, one.found, one.advice)


def _used(cloud: str, settings: ClientSettings, client: Client, stores: Stores, say: Say) -> KnownStore:
    name = ""
    if is_twin(cloud):
        from stoker.client.local import (
            rehearsal,
            twin,  # needed only for a rehearsal
        )

        told, _ = twin.up(settings, twin.TwinOptions(blob=True))
        name = rehearsal.store(told, settings, client.connection, say)
    every = stores.all()
    return next((one for one in every if (one.name == name if name else one.workspace)), every[0])


# The report of a preflight and its proof as Markdown, to share with colleagues: without secrets and ids. Pure.

_GUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bsig=)[^&\s]+")


def markdown(
    cloud: str, version: str, at: datetime, findings: Sequence[Finding], events: Sequence[Event] = (), home: str = ""
) -> str:
    """`home` is a local path that is removed from the report."""
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
