"""What nodes of a run asked of Azure is recorded without secrets, and becomes a test that needs no Azure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from services import KEY, Azurite
from stoker.errors import ProviderFailed
from stoker.model.node import Need, NodeRequest, NodeSight, NodeState
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.azure import AzureProvider
from stoker.providers.azure.account.recording import IDS, recording
from stoker.stores.kinds import grant
from stoker.stores.opening import open_store
from stoker.testing.twin import TwinHandle, twin

SIZE, SECRET = "Standard_D2s_v5", "hush-hush-hush"
NOWHERE = "https://nowhere.invalid"


class Provided:
    """A provider whose account is in a folder, and the requests that a server would make of it."""

    def __init__(self, folder: Path, azurite: Azurite, **account: Any) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "azure.json").write_text(json.dumps({"workspace": "team", "regions": ["eastus"], **account}))
        self.provider = AzureProvider(Setup(Home(folder), server="mine"))
        self._azurite = azurite

    def request(self, key: str) -> NodeRequest:
        place, credential = self._azurite.new_container(), self._azurite.account_key
        open_store(place, credential).put(layout.orders("r", 1), b"{}")
        access = grant(place, credential, reads=["blobs/"], writes=[layout.run("r")], for_s=3600).to_text()
        (offer,) = self.provider.offers(Need(size=SIZE, region="eastus", spot=True))
        return NodeRequest(
            key,
            layout.orders("r", 1),
            place,
            offer=offer,
            access=access,
            seal="00" * 32,
            secrets={"HF_TOKEN": SECRET},
            labels={"owner": "anna@example.org"},
            max_price=Decimal("0.5"),
            lease_s=3600.0,
        )

    def until(self, key: str, condition: Callable[[NodeSight | None], bool]) -> NodeSight | None:
        give_up = time.monotonic() + 30
        while True:
            seen = next((one for one in self.provider.look() if one.key == key), None)
            if condition(seen):
                return seen
            assert time.monotonic() < give_up, seen
            time.sleep(0.02)


def lives(given: Provided, weather: Callable[..., object]) -> list[tuple[Any, ...]]:
    """Of three nodes: one without capacity in Azure, one that is evicted, and one that is stopped. `weather` are
    Azure's faults in between."""
    provider, told = given.provider, []
    weather("fault", kind="allocation", times=1)
    provider.start(given.request("r-1"))
    lacking = given.until("r-1", lambda one: one is not None and one.state is NodeState.GONE)
    told.append(_words(lacking))
    provider.stop("r-1")
    given.until("r-1", lambda one: one is None)
    for key in ("r-2", "r-3"):
        provider.start(given.request(key))
        told.append(_words(given.until(key, lambda one: one is not None and one.state is NodeState.UP)))
        provider.renew(key, 7200.0)
        if key == "r-2":
            weather("evict", notice_s=0)
            told.append(_words(given.until(key, lambda one: one is not None and one.state is NodeState.GONE)))
        provider.stop(key)
        provider.stop(key)
        given.until(key, lambda one: one is None)
    return told


def _words(sight: NodeSight | None) -> tuple[Any, ...]:
    assert sight is not None
    return sight.key, sight.state, sight.trouble, sight.taken, sight.still, sight.usd_per_hour


def of_twin(cloud: TwinHandle, folder: Path) -> dict[str, Any]:
    address = cloud.address
    (folder / "secret").write_text(address.client_secret)
    return {
        "subscription": address.subscription,
        "tenant": address.tenant,
        "client": address.client_id,
        "secret_file": str(folder / "secret"),
        "arm": address.url,
        "login": address.url,
        "prices": f"{address.url}/api/retail/prices",
        "ca_file": address.authority,
    }


def weather_of(cloud: TwinHandle) -> Callable[..., object]:
    def makes(word: str, **order: Any) -> object:
        if word == "evict":
            order["vm"] = cloud.ask("status")["machines"][0]["vm"]
        return cloud.order(word, **order)

    return makes


@pytest.mark.heavy
def test_the_lives_of_nodes_are_recorded_without_secrets_and_replayed_without_azure(
    azurite: Azurite, tmp_path: Path
) -> None:
    """In calm weather: what is asked in a storm depends on how long each answer took."""
    file = tmp_path / "asked.jsonl"
    with twin(tmp_path / "twin", speed=10) as cloud:
        there = Provided(tmp_path / "home", azurite, **of_twin(cloud, tmp_path))
        private = [cloud.address.client_secret, cloud.address.subscription, cloud.address.tenant, SECRET]
        with recording(tmp_path / "home", file):
            met = lives(there, weather_of(cloud))
        asked = len(cloud.ask("requests"))
    assert [one[1:4] for one in met] == [
        (NodeState.GONE, "no-capacity", False),
        (NodeState.UP, "", False),
        (NodeState.GONE, "", True),
        (NodeState.UP, "", False),
    ]
    text = file.read_text()
    for word in (*private, "I2Nsb3VkLWNvbmZpZw", "sig=", KEY, "anna@"):
        assert word not in text.replace("sig=<secret>", ""), word
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) >= 0.8 * asked, "everything but the login"
    assert {"PUT", "GET", "DELETE", "PATCH"} <= {one["method"] for one in lines}

    again = Provided(
        tmp_path / "elsewhere", azurite, **IDS, replay=str(file), arm=NOWHERE, prices=f"{NOWHERE}/api/retail/prices"
    )
    assert lives(again, lambda *_, **__: None) == met, "the twin is gone: every answer came from the file"


def test_a_provider_that_asks_for_something_else_than_was_recorded_is_told_so(azurite: Azurite, tmp_path: Path) -> None:
    """Else a replay could pass although what is asked of Azure has changed."""
    file = tmp_path / "asked.jsonl"
    with twin(tmp_path / "twin", speed=10) as cloud:
        there = Provided(tmp_path / "home", azurite, **of_twin(cloud, tmp_path))
        with recording(tmp_path / "home", file):
            there.provider.look()
    again = Provided(tmp_path / "elsewhere", azurite, **IDS, replay=str(file), arm=NOWHERE)
    assert again.provider.look() == []
    with pytest.raises(ProviderFailed, match="has no response to"):
        again.provider.offers(Need(size=SIZE, region="eastus"))
