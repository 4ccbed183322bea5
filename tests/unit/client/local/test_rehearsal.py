"""Rehearsals without a twin: which provider is whose twin, and what is done where the twin is down."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.client.api.connection import Connection, ServerAddress
from stoker.client.local import rehearsal
from stoker.client.local import rehearsal as azurite
from stoker.client.settings import from_environment
from stoker.errors import AzuriteMissing, BadInput, NotSetUp, TwinFailed
from stoker.model.node import Need, NodeRequest
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import is_twin, original, twin_of
from stoker.providers import Setup
from stoker.providers.azure.rehearsal import TwinProvider
from stoker.twin.blob import check_free, find_place

TOLD = {
    "url": "https://127.0.0.1:4443",
    "authority": "/ca.pem",
    "tenant": "t",
    "subscription": "s",
    "client_id": "c",
    "client_secret": "first",
    "token": "k",
    "pid": 1,
    "blob": None,
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "twin" / "machines").mkdir(parents=True)
    return Home(tmp_path)


def tell(home: Home, **changed: Any) -> None:
    (home.twin / "twin.json").write_text(json.dumps({**TOLD, **changed}))


@contextmanager
def alive(home: Home) -> Iterator[None]:
    """As long as a twin would live."""
    handle = os.open(home.twin / "twin.alive", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


def test_the_twin_of_a_provider_is_another_one_of_its_name() -> None:
    assert twin_of("azure") == "azure-twin"
    assert twin_of("azure-twin") == "azure-twin"
    assert is_twin("azure-twin") and not is_twin("azure")
    assert original("azure-twin") == "azure"


def test_a_provider_without_a_twin_is_reported_with_one_that_has(tmp_path: Path) -> None:
    settings = from_environment({"STOKER_HOME": str(tmp_path)})
    nowhere = Connection(ServerAddress("http://127.0.0.1:9", ""))
    with pytest.raises(BadInput, match="`local`") as refused:
        rehearsal.stage("local-twin", settings, nowhere, lambda _: None)
    assert refused.value.hint == "stoker run --on azure --twin"


def test_a_server_elsewhere_is_no_place_for_a_rehearsal(tmp_path: Path) -> None:
    settings = from_environment({"STOKER_HOME": str(tmp_path), "STOKER_SERVER": "http://10.0.0.1:80"})
    with pytest.raises(BadInput, match="cannot reach a twin"):
        rehearsal.stage("azure-twin", settings, Connection(ServerAddress("http://10.0.0.1:80", "")), lambda _: None)


def test_a_twin_that_was_asked_to_stop_stays_down_and_has_nothing(home: Home) -> None:
    provider = TwinProvider(Setup(home))
    assert provider.look() == []
    provider.stop("any-1")
    offers = provider.offers(Need())
    assert offers and {offer.unready for offer in offers} == {"the twin is down"}
    with pytest.raises(NotSetUp) as refused:
        provider.start(NodeRequest("any-1", "orders", "store", offers[0]))
    assert refused.value.hint == "stoker twin up"


def test_a_killed_twin_without_machines_is_left_alone_by_whoever_only_looks(home: Home) -> None:
    tell(home)
    provider = TwinProvider(Setup(home))
    assert provider.look() == []
    assert not (home.twin / "twin.log").exists(), "nothing was started"


def test_the_account_is_the_twins_own_and_follows_it(home: Home) -> None:
    tell(home)
    provider = TwinProvider(Setup(home))
    with alive(home):
        account = provider._account
        assert (account.subscription, account.arm, account.client) == ("s", TOLD["url"], "c")
        assert Path(account.secret_file).read_text() == "first"
        assert Path(account.secret_file).stat().st_mode & 0o777 == 0o600
        tell(home, client_secret="second", url="https://127.0.0.1:5555", pid=2)
        provider._reach()
        assert provider._account.arm == "https://127.0.0.1:5555"
        assert Path(provider._account.secret_file).read_text() == "second"


def test_another_pid_or_a_blob_service_is_no_other_account(home: Home) -> None:
    tell(home)
    provider = TwinProvider(Setup(home))
    with alive(home):
        account = provider._account
        tell(home, pid=2, blob={"url": "http://127.0.0.1:1/a/b"})
        provider._reach()
        assert provider._account is account


def test_blobs_have_a_place_that_stays_and_a_private_key(tmp_path: Path) -> None:
    first = find_place(tmp_path / "place.json")
    assert find_place(tmp_path / "place.json") == first
    assert (tmp_path / "place.json").stat().st_mode & 0o777 == 0o600
    assert first.key not in repr(first)
    assert first.told["url"] == f"http://127.0.0.1:{first.port}/stokertwin/runs"


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TwinFailed, match=rf"\b{port}\b"):
            check_free(port)


def test_without_npm_the_command_that_brings_it_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home.root))
    with pytest.raises(AzuriteMissing) as refused:
        azurite.install(home, lambda _: None)
    assert refused.value.hint == "apt-get install nodejs npm"


def test_azurite_is_installed_once_into_stokers_own_folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever npm is on the path."""
    npm = home.root / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" >> {home.root}/asked\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home.root}:/bin:/usr/bin")
    said: list[str] = []
    azurite.install(home, said.append)
    assert f"--prefix {home.azurite}" in (home.root / "asked").read_text()
    assert str(home.azurite) in said[0]


def test_an_npm_that_fails_is_quoted_with_what_to_try(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = home.root / "npm"
    npm.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home.root}:/bin:/usr/bin")
    with pytest.raises(TwinFailed, match="no network") as refused:
        azurite.install(home, lambda _: None)
    assert "npm install --prefix" in refused.value.hint
