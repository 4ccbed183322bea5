"""The provider of Azure ML keeps the provider contract, on a twin: each node is a command job on a real machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from azuretwin import Cloud
from learningtwin import learning_twin, made_workspace, node_of, set_up_learning

from stoker.errors import BadInput, JobInvalid, NotSetUp
from stoker.model.node import Need, NodeRequest, NodeState, Offer, Pool
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.azureml import AzureMlProvider
from stoker.stores.access import Credential
from stoker.stores.kinds import grant
from stoker.testing.providers import PATIENCE_S, ProviderContract

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a twin with several real machines requires root"),
]
SIZE = "Standard_D2s_v5"
POOL = Pool("cpus", {}, most_nodes=4, idle_s=600.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with learning_twin(tmp_path_factory.mktemp("azureml")) as cloud:
        workspace = made_workspace(cloud)
        yield {"cloud": cloud, "workspace": workspace, "blob": cloud.ask("blob", start=True)}


class TestAzureMlProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def clean(self, world: dict[str, Any], tmp_path: Path) -> Iterator[None]:
        self.cloud: Cloud = world["cloud"]
        self.workspace, self.blob = world["workspace"], world["blob"]
        yield
        left = self.make(tmp_path)
        for one in left.look():
            left.stop(one.key)
        assert left.look() == []

    def make(self, folder: Path) -> Provider:
        set_up_learning(folder, self.cloud, self.workspace, "cpus")
        return AzureMlProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str) -> NodeRequest:
        """Its agent waits for orders that never come."""
        credential = Credential("account-key", {"key": self.blob["key"]})
        run = f"{folder.name}-{key}"
        access = grant(self.blob["url"], credential, reads=["blobs/"], writes=[layout.run(run)], for_s=3600)
        offer = Offer("azureml", SIZE, "eastus", Decimal("0.09"), spot=True)
        need = Need(size=SIZE, spot=True, pool=POOL)
        labels = {"run": "ants-1", "owner": "anna"}
        secrets = {"HF_TOKEN": "hidden-17"}
        return NodeRequest(
            key,
            layout.orders(run, 1),
            self.blob["url"],
            offer=offer,
            access=access.to_text(),
            seal="00" * 32,
            labels=labels,
            pool=POOL,
            need=need,
            secrets=secrets,
            lease_s=3600.0,
        )

    def take_away(self, provider: Provider, key: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._seen(provider, key).state is not NodeState.UP and time.monotonic() < deadline:
            time.sleep(0.1)
        vm = ""
        while not vm and time.monotonic() < deadline:
            vm = node_of(self.cloud, self.workspace, "cpus", f"-{key}")
        self.cloud.ask("evict", vm=vm, notice_s=0)

    def test_it_offers_something_with_a_price(self, provider: Provider) -> None:
        (offer,) = provider.offers(Need(size=SIZE, spot=True, pool=POOL))
        assert (offer.size, offer.place, offer.spot) == (SIZE, "eastus", True)
        assert offer.usd_per_hour > 0

    def test_an_evicted_node_was_preempted_and_its_job_is_not_in_the_list_afterwards(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        provider.start(self.request(tmp_path, "r-7"))
        self.take_away(provider, "r-7")
        self._becomes(provider, "r-7", NodeState.GONE)
        assert self._seen(provider, "r-7").taken
        provider.stop("r-7")
        assert provider.look() == []

    def test_secrets_are_in_neither_the_job_nor_its_files(self, provider: Provider, tmp_path: Path) -> None:
        assert isinstance(provider, AzureMlProvider)
        provider.start(self.request(tmp_path, "r-1"))
        name = provider._job_name("r-1")
        job = provider._workspace.job(name)
        files = provider._workspace.files()
        kept = [files.get(one.key) for one in files.list(f"stoker/{name}/")]
        assert len(kept) == 2
        assert not [one for one in (str(job).encode(), *kept) if b"hidden-17" in one]
        provider.stop("r-1")
        assert not list(files.list(f"stoker/{name}/"))

    def test_a_job_that_waits_says_why_in_words_of_azure(self, provider: Provider, tmp_path: Path) -> None:
        self.cloud.ask("quota", region="eastus", family="lowPriorityCores", limit=0)
        try:
            request = self.request(tmp_path, "r-1")
            pool = Pool("other", {}, most_nodes=1, idle_s=60.0)
            provider.start(replace(request, pool=pool, need=replace(request.need or Need(), pool=pool)))
            deadline = time.monotonic() + PATIENCE_S
            while "quota" not in (sight := self._seen(provider, "r-1")).waits and time.monotonic() < deadline:
                provider = self.make(tmp_path)
                time.sleep(0.2)
            assert (sight.state, "quota" in sight.waits) == (NodeState.STARTING, True)
            provider.stop("r-1")
        finally:
            self.cloud.ask("quota", region="eastus", family="lowPriorityCores", limit=100)

    def test_a_lease_is_written_on_the_job(self, provider: Provider, tmp_path: Path) -> None:
        assert isinstance(provider, AzureMlProvider)
        provider.start(self.request(tmp_path, "r-1"))
        before = self._seen(provider, "r-1").lease_until
        provider.renew("r-1", 7200.0)
        after = self._seen(provider, "r-1").lease_until
        assert before and after and 3500 < (after - before).total_seconds() < 3700
        provider.stop("r-1")

    def test_what_it_cannot_use_is_refused_with_what_it_can(self, provider: Provider, tmp_path: Path) -> None:
        with pytest.raises(JobInvalid) as refused:
            provider.offers(Need(pool=Pool("cpus", {"computer": "x"})))
        assert refused.value.problems[0].nearest == "compute"
        with pytest.raises(BadInput):
            provider.offers(Need(pool=Pool("unknown")))
        (tmp_path / "azureml.json").write_text('{"workspace": "demo"}')
        with pytest.raises(NotSetUp):
            AzureMlProvider(Setup(Home(tmp_path))).look()
        (tmp_path / "azureml.json").unlink()
        (bare,) = AzureMlProvider(Setup(Home(tmp_path))).offers(Need())
        assert bare.unready
