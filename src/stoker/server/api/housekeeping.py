"""The sizes of runs, which of them are too old, and deleting several at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from stoker.errors import BadInput
from stoker.model.run.pruning import PruneRule, Sizes, Spared
from stoker.model.run.run import Run
from stoker.server.api.http.reading import body
from stoker.server.api.http.shape import OUTSIDE, answer, gives, service_of, takes
from stoker.server.rounds.outside import call

router = APIRouter(tags=["housekeeping"])

MOST_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Named:
    """Runs by their names."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleChange:
    """`rule` applies from now on; null: none does."""

    rule: PruneRule | None = None


_REMOVED = {"removed": tuple[str, ...], "pending": Mapping[str, str]}
_PRUNABLE = {"runs": tuple[Run, ...], "spared": tuple[Spared, ...]}


@router.post("/removals", openapi_extra=takes(Named), responses=gives(_REMOVED, 404, *OUTSIDE))
async def remove(request: Request) -> Response:
    """Deletes ended runs, all of them or none. `pending` names those with files still in a store, and why: the server
    keeps trying."""
    named = _checked(await body(request, Named))
    pending = await service_of(request).removals.remove(named)
    return answer({"removed": named, "pending": pending})


@router.post("/sizes", openapi_extra=takes(Named), responses=gives(Sizes, 404, *OUTSIDE))
async def sizes(request: Request) -> Response:
    """The size of these runs in their stores and on the server's computer. Changes nothing."""
    service = service_of(request)
    runs = [await service.ledger.find(name) for name in _checked(await body(request, Named))]
    return answer(await call(service.weighing.weigh, runs))


@router.post("/prunable", openapi_extra=takes(PruneRule), responses=gives(_PRUNABLE))
async def prunable(request: Request) -> Response:
    """Which runs this rule would delete, and which stay although they are old. Deletes nothing."""
    gone, spared = await service_of(request).housekeeping.prunable(_sensible(await body(request, PruneRule)))
    return answer({"runs": gone, "spared": spared})


@router.get("/prune-rule", responses=gives({"rule": PruneRule | None}))
async def show_rule(request: Request) -> Response:
    """The rule by which the server deletes old runs every day; null: none."""
    return answer({"rule": await call(lambda: service_of(request).housekeeping.rule)})


@router.post("/prune-rule", openapi_extra=takes(RuleChange), responses=gives({"rule": PruneRule | None}))
async def set_rule(request: Request) -> Response:
    """Sets that rule, or removes it."""
    rule = (await body(request, RuleChange)).rule
    await call(service_of(request).housekeeping.keep_rule, _sensible(rule) if rule else None)
    return answer({"rule": rule})


def _checked(named: Named) -> list[str]:
    if len(named.runs) > MOST_RUNS:
        raise BadInput(f"runs: found {len(named.runs)} names, expected at most {MOST_RUNS}")
    return list(dict.fromkeys(named.runs))


def _sensible(rule: PruneRule) -> PruneRule:
    if not 0 <= rule.older_than_s < 1e10:
        raise BadInput(f"older_than_s: found {rule.older_than_s:g}, expected 0 or more seconds")
    return rule
