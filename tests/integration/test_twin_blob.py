"""The twin's own Blob service: a real Azurite, killed and started again, for accounts of Resource Manager too."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from services import INSTALLED
from stoker.errors import AzuriteMissing
from stoker.stores import Store
from stoker.stores.access import Credential
from stoker.stores.azure.containers import BlobContainers
from stoker.stores.azure.rights import account_sas
from stoker.stores.kinds import locate
from stoker.stores.opening import open_store
from stoker.twin import state, tokens
from stoker.twin.blob import BlobService, StorageAccount
from stoker.twin.state import CloudState
from stoker.twin.time.weather import Weather

pytestmark = [pytest.mark.timeout(120)]
PATIENCE_S = 60.0


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Callable[[], BlobService]]:
    """One after another, all in the same folder."""
    made: list[BlobService] = []

    def make() -> BlobService:
        made.append(BlobService(tmp_path / "blob", [INSTALLED]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def store_of(service: BlobService) -> Store:
    told = service.place.told
    return open_store(told["url"], Credential("account-key", {"key": told["key"]}))


def wait_for(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.02)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_it_comes_back_at_its_place_with_what_it_held(services: Callable[[], BlobService]) -> None:
    first = services()
    first.start()
    store_of(first).put("runs/1/report.json", b"kept")
    first.close()
    assert not answers(first.place.port)
    second = services()
    assert second.start() == first.place
    assert store_of(second).get("runs/1/report.json") == b"kept"


def test_killed_it_is_started_again(services: Callable[[], BlobService]) -> None:
    service = services()
    service.start()
    times: list[float] = []
    service.attend(dict, lambda: times.append(time.monotonic()))
    assert service._process
    os.kill(service._process.pid, signal.SIGKILL)
    wait_for(lambda: len(times) == 2, "the next one")
    store_of(service).put("probe", b"?")


def test_accounts_of_resource_manager_are_served_with_their_containers(services: Callable[[], BlobService]) -> None:
    service = services()
    accounts: dict[str, StorageAccount] = {}
    service.attend(lambda: accounts, lambda: None)
    key = base64.b64encode(b"k" * 64).decode()
    accounts = {"team1": StorageAccount((key,), frozenset(("models",)))}
    wait_for(lambda: service.running and "team1" in service._served, "the account")
    place = locate(f"{service.place.endpoint}/team1/any")
    made = BlobContainers(place, lambda: (account_sas(place, key, 3600), {}))
    assert list(made.list("")) == ["models"]


def test_a_login_does_with_blobs_what_its_role_says(services: Callable[[], BlobService]) -> None:
    cloud, other = state.fresh(Weather()), state.fresh(Weather())
    service = services()
    key = base64.b64encode(b"k" * 64).decode()
    people = {"writer": True, "reader": False}
    accounts = {"team1": StorageAccount((key,), frozenset(("models",)), people, cloud.key)}
    service.attend(lambda: accounts, lambda: None)
    wait_for(lambda: service.running and "team1" in service._served, "the account")

    def ask(method: str, path: str, who: str, issuer: CloudState = cloud) -> int:
        token = tokens.issue(issuer, "client", who, "https://storage.azure.com", time.time())["access_token"]
        headers = {"Authorization": f"Bearer {token}", "x-ms-version": "2021-12-02", "x-ms-blob-type": "BlockBlob"}
        connection = HTTPConnection("127.0.0.1", service.place.port, timeout=10)
        connection.request(method, f"/team1/{path}", b"bytes" if method == "PUT" else None, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert ask("PUT", "models/a", "writer") == 201
    assert ask("GET", "models/a", "reader") == 200
    assert ask("PUT", "models/a", "reader") == 403
    assert ask("GET", "models/a", "stranger") == 403
    assert ask("GET", "models/a", "writer", issuer=other) == 403, "a token that this twin has not signed"


def test_blobs_of_an_account_that_was_deleted_are_gone(services: Callable[[], BlobService]) -> None:
    service = services()
    key = base64.b64encode(b"k" * 64).decode()
    accounts = {"team1": StorageAccount((key,), frozenset(("models",)))}
    service.attend(lambda: accounts, lambda: None)
    wait_for(lambda: service.running and "team1" in service._served, "the account")
    url, credential = f"{service.place.endpoint}/team1/models", Credential("account-key", {"key": key})
    open_store(url, credential).put("data/x", b"?")
    accounts = {}
    wait_for(lambda: "team1" not in service._served, "its end")
    accounts = {"team1": StorageAccount((key,), frozenset(("models",)))}
    wait_for(lambda: "team1" in service._served, "the account again")
    assert list(open_store(url, credential).list("")) == []


def test_it_ends_with_its_twin_however_that_ends(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from stoker.twin.blob import BlobService\n"
        "service = BlobService(Path(sys.argv[1]), [Path(sys.argv[2])])\n"
        "print(service.start().port, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "blob"), str(INSTALLED)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as twin:
        assert twin.stdout
        port = int(twin.stdout.readline())
        assert answers(port)
        twin.kill()
    wait_for(lambda: not answers(port), "the end of Azurite")


def test_without_azurite_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    service = BlobService(tmp_path / "blob", [tmp_path])
    with pytest.raises(AzuriteMissing) as refused:
        service.start()
    assert refused.value.hint.startswith("npm install")
    service.close()
