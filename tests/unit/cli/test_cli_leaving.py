"""What is left of a run is asked of its own provider, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

from stoker.cli.commands.act.cleanup import left
from stoker.client.api.client import Client
from stoker.model.node import Offer
from stoker.model.run.run import Attempt, AttemptState, Run

OFFER = Offer("azure-twin", "D2", "eastus", Decimal("0.1"), spot=True)


def test_a_run_on_the_twin_says_nothing_of_a_cloud_that_nobody_is_logged_in_to(make_run: Callable[..., Run]) -> None:
    run = make_run(job={"on": "azure-twin"})
    run = make_run(
        job={"on": "azure-twin"},
        attempts=(Attempt(1, "key-1", AttemptState.ENDED, run.submitted_at, offer=OFFER),),
    )
    asked: list[dict[str, Any]] = []

    def get(path: str, query: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        asked.append({"path": path, **query})
        unseen = [] if query.get("provider") else [{"provider": "azure", "reason": "nobody is logged in", "hint": ""}]
        return {"nodes": [], "unseen": unseen, "troubled": []}

    client = cast(Client, SimpleNamespace(connection=SimpleNamespace(get=get)))
    assert left(client, run) == "0 resources left, $0.00/h"
    assert asked == [{"path": "/v1/nodes", "provider": "azure-twin"}]
