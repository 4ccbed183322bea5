"""The runs of an experiment or a sweep as rows of a table: thousands of them, without reading each as a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from stoker.errors import NotFound
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.run.run import Run
from stoker.model.run.sweep import ResultRow
from stoker.server.api.answers import answer, gives, service_of
from stoker.server.records.database import RUNS
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.server.sweeps.book import Row, plain_usd

router = APIRouter(tags=["sweeps"])


@router.get("/results/{name}", responses=gives({"rows": tuple[ResultRow, ...]}, 404))
async def results(request: Request, name: str) -> Response:
    """Every run of an experiment, or of a sweep, oldest first. A trial that was retried has the row of its newest
    run."""
    service = service_of(request)
    names = {one.id: one.name for one in service.sweeps.all}
    sweep = next((id for id, known in names.items() if known == name), "")
    live = {run.id: await service.reconciler.live(run) for run in _under_way(service, name, sweep)}
    found = await call(lambda: list(_rows(service, name, sweep, names, live)))
    if not found:
        raise NotFound(f"there is no experiment or sweep called `{name}`", hint="stoker ps -a", cause=Cause.NO_SUCH_RUN)
    newest = {(row["sweep"], row["trial"]): row for row in found if row["sweep"]}
    return answer({"rows": [row for row in found if not row["sweep"] or newest[row["sweep"], row["trial"]] is row]})


def _under_way(service: Service, name: str, sweep: str) -> list[Run]:
    runs = [run for run in service.ledger.open if run.attempts]
    return [run for run in runs if (run.trial and run.trial.sweep == sweep) or (not sweep and run.experiment == name)]


def _rows(service: Service, name: str, sweep: str, names: Mapping[str, str], live: Mapping[str, Run]) -> Iterator[Row]:
    now, cache = service.clock.now(), service.results
    which = RUNS.c.sweep == sweep if sweep else RUNS.c.experiment == name
    query = select(RUNS.c.id, RUNS.c.is_open, RUNS.c.facts).where(which).order_by(RUNS.c.id)
    with service.database.engine.connect() as connection:
        for run_id, is_open, facts in connection.execute(query):
            known = cache.get(run_id)
            if known is None:
                run = live.get(run_id)
                known = _row(wire.to_plain(run) if run else json.loads(facts), names, now)
                if not is_open:
                    cache.keep(run_id, known)
            yield known


def _row(run: Mapping[str, Any], names: Mapping[str, str], now: datetime) -> Row:
    trial, attempts = run.get("trial"), run["attempts"]
    return {
        "name": run["name"],
        "number": run["number"],
        "state": run["state"],
        "values": trial["values"] if trial else _flags(run["job"]["run"]),
        "metrics": run["metrics"],
        "usd": str(plain_usd(run, now)) if run["spells"] else "0",
        "seconds": _seconds(attempts, now),
        "nodes": 1 + len(attempts[-1]["peers"]) if attempts else 1,
        "sweep": names.get(trial["sweep"], "") if trial else "",
        "trial": trial["number"] if trial else 0,
        "cause": run["cause"],
        "submitted_at": run["submitted_at"],
    }


def _seconds(attempts: list[Mapping[str, Any]], now: datetime) -> float:
    """Seconds in which its script ran, in all attempts."""
    total = 0.0
    for one in attempts:
        if one["started_at"]:
            until = datetime.fromisoformat(one["ended_at"]) if one["ended_at"] else now
            total += max((until - datetime.fromisoformat(one["started_at"])).total_seconds(), 0.0)
    return round(total, 3)


def _flags(command: str) -> dict[str, str]:
    """`--lr 0.1 --seed=3` of a run that is no trial."""
    try:
        words = shlex.split(command)
    except ValueError:  # for a shell of another kind
        return {}
    found = {}
    for word, following in pairwise([*words, "--"]):
        if word.startswith("--") and len(word) > 2:
            name, equals, text = word.removeprefix("--").partition("=")
            found[name] = text if equals else "true" if following.startswith("--") else following
    return found
