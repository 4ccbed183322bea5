"""The contract of every provider: a plug-in author subclasses it and says how one is created and killed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.model.node import Need, NodeRequest, NodeSight, NodeState
from stoker.providers import Provider

PATIENCE_S = 30.0


class ProviderContract(ABC):
    @abstractmethod
    def make(self, folder: Path) -> Provider:
        """A provider on this folder. Two providers on the same folder see the same nodes."""

    @abstractmethod
    def request(self, folder: Path, key: str) -> NodeRequest:
        """A request for a node that stays up until it is stopped."""

    @abstractmethod
    def take_away(self, provider: Provider, key: str) -> None:
        """Evicts the node without notice."""

    @pytest.fixture
    def provider(self, tmp_path: Path) -> Provider:
        return self.make(tmp_path)

    def test_it_offers_something_with_a_price(self, provider: Provider) -> None:
        offers = provider.offers(Need())
        assert offers
        assert all(offer.usd_per_hour >= 0 for offer in offers)

    def test_it_sees_no_nodes_before_any_is_started(self, provider: Provider) -> None:
        assert provider.look() == []

    def test_a_started_node_is_seen(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        assert self._seen(provider, "r-1").state in (NodeState.STARTING, NodeState.UP)
        provider.stop("r-1")

    def test_starting_the_same_key_again_gives_no_second_node(self, provider: Provider, tmp_path: Path) -> None:
        for _ in range(3):
            provider.start(self.request(tmp_path, "r-1"))
        assert [sight.key for sight in provider.look()] == ["r-1"]
        provider.stop("r-1")

    def test_another_instance_sees_the_same_nodes(self, provider: Provider, tmp_path: Path) -> None:
        """A restarted server knows only what it sees."""
        provider.start(self.request(tmp_path, "r-1"))
        again = self.make(tmp_path)
        assert self._seen(again, "r-1").state in (NodeState.STARTING, NodeState.UP)
        again.stop("r-1")
        assert self._gone(provider, "r-1")

    def test_a_stopped_node_is_no_longer_seen(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        provider.start(self.request(tmp_path, "r-2"))
        provider.stop("r-1")
        assert self._gone(provider, "r-1")
        assert self._seen(provider, "r-2")
        provider.stop("r-2")

    def test_stopping_twice_or_something_unknown_is_fine(self, provider: Provider, tmp_path: Path) -> None:
        provider.stop("never-there")
        provider.start(self.request(tmp_path, "r-1"))
        provider.stop("r-1")
        provider.stop("r-1")
        assert self._gone(provider, "r-1")

    def test_a_node_that_was_taken_away_is_seen_as_gone_until_it_is_stopped(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        self._seen(provider, "r-1")
        self.take_away(provider, "r-1")
        deadline = time.monotonic() + PATIENCE_S
        while self._seen(provider, "r-1").state is not NodeState.GONE:
            assert time.monotonic() < deadline, "the loss was not noticed"
            time.sleep(0.01)
        provider.stop("r-1")
        assert self._gone(provider, "r-1")

    def test_an_evicted_node_comes_back_by_itself_under_its_key_until_it_is_stopped(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        if not provider.features.restores:
            pytest.skip("the provider does not restore nodes")
        provider.start(self.request(tmp_path, "r-1"))
        self._becomes(provider, "r-1", NodeState.UP)
        for _ in range(2):
            self.take_away(provider, "r-1")
            self._becomes(provider, "r-1", NodeState.GONE)
            self._becomes(provider, "r-1", NodeState.UP)
            assert [sight.key for sight in provider.look()] == ["r-1"]
        self.take_away(provider, "r-1")
        self._becomes(provider, "r-1", NodeState.GONE)
        provider.stop("r-1")
        assert self._gone(provider, "r-1")

    def test_the_nodes_of_a_gang_are_asked_for_at_once_and_each_is_stopped_alone(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        if provider.features.most_nodes == 1:
            pytest.skip("its runs have one node")
        keys = ["g-1", "g-1-1", "g-1-2"]
        with ThreadPoolExecutor(len(keys)) as pool:
            list(pool.map(provider.start, (replace(self.request(tmp_path, key), gang="g") for key in keys)))
        for key in keys:
            self._becomes(provider, key, NodeState.UP)
        assert sorted(sight.key for sight in provider.look()) == keys
        provider.stop("g-1-1")
        assert self._gone(provider, "g-1-1")
        assert {self._seen(provider, key).state for key in ("g-1", "g-1-2")} == {NodeState.UP}
        provider.start(replace(self.request(tmp_path, "g-2-1"), gang="g"))  # the one that replaces it
        self._becomes(provider, "g-2-1", NodeState.UP)
        self.take_away(provider, "g-1-2")
        self._becomes(provider, "g-1-2", NodeState.GONE)
        assert {self._seen(provider, key).state for key in ("g-1", "g-2-1")} == {NodeState.UP}
        for key in ("g-1", "g-1-2", "g-2-1"):
            provider.stop(key)
        assert all(self._stays_gone(provider, key) for key in ("g-1", "g-1-2", "g-2-1"))
        assert provider.look() == []

    def _stays_gone(self, provider: Provider, key: str) -> bool:
        """Some providers remove a node step by step: whoever still sees it stops it again."""
        deadline = time.monotonic() + PATIENCE_S
        while any(sight.key == key for sight in provider.look()):
            if time.monotonic() > deadline:
                return False
            provider.stop(key)
            time.sleep(0.05)
        return True

    def _becomes(self, provider: Provider, key: str, state: NodeState) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._seen(provider, key).state is not state:
            assert time.monotonic() < deadline, f"{key} was never {state}"
            time.sleep(0.01)

    def _seen(self, provider: Provider, key: str) -> NodeSight:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = [sight for sight in provider.look() if sight.key == key]
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"{key} was never seen"
            time.sleep(0.01)

    def _gone(self, provider: Provider, key: str) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while any(sight.key == key for sight in provider.look()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True
