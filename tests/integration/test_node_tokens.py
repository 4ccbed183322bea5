"""What the tokens of a node open: every one of them is tried on every object of a real service.

The tokens are those of an active run. A malicious node sends its own requests, so none of Stoker's own checks is
between them and the service.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote
from urllib.request import Request, urlopen

import pytest
from shell import Shell, made_shell

from services import KEY, Azurite
from stoker.model.workspace import layout
from stoker.stores.access import Access
from stoker.stores.azure.client import sas_expires_at
from stoker.stores.azure.containers import container_of
from stoker.stores.kinds import locate
from stoker.stores.opening import open_store

SLEEPS = "import time; print('here', flush=True); time.sleep(300)"
LOOKS_AROUND = """
    import glob, sys
    seen = 0
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = open(path, "rb").read()
        except OSError:
            continue
        if sys.argv[1].encode() in text:
            seen += 1
            for word in (b"sig=", b"STOKER_ACCESS", b"STOKER_SEAL"):
                if word in text:
                    print("found", word, "in", path)
    print("looked at several" if seen > 1 else "saw nothing")
"""
VERSION = {"x-ms-version": "2021-12-02"}


@dataclass
class Scene:
    """An active run in a store with another run, another dataset, other code and everybody's records."""

    azurite: Azurite
    url: str
    access: Access
    run: str  # ids
    other: str
    snapshot: str
    other_snapshot: str

    def container(self, key: str) -> str:
        return container_of(locate(self.url), key)[0].container

    def blobs(self) -> set[tuple[str, str]]:
        """Everything in the account that belongs to the store, by container and name."""
        account = self.azurite.account()
        found = set()
        for container in account.list(locate(self.url).container):
            url = f"{self.azurite.endpoint}/{container}"
            store = open_store(url, self.azurite.sas(url))
            found |= {(container, one.key) for one in store.list("")}
        return found

    def asks(self, token: str, method: str, path: str, query: str = "", body: bytes = b"") -> bool:
        """Whether the service does it."""
        headers = VERSION | ({"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {})
        target = f"{self.azurite.endpoint}/{quote(path)}?{query}{'&' if query else ''}{token}"
        request = Request(target, body if method == "PUT" else None, headers, method=method)
        try:
            with urlopen(request, timeout=10):
                return True
        except HTTPError as error:
            assert error.code in (400, 403, 404), error
            return False


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, azurite: Azurite) -> Iterator[Scene]:
    with made_shell(tmp_path_factory.mktemp("tokens")) as shell:
        yield _scene(shell, azurite)
        shell.stoker("cancel", "job-1")  # its data is released by its own agent
        shell.ended("job-1")


def _scene(shell: Shell, azurite: Azurite) -> Scene:
    url = azurite.new_container()
    added = shell.start("store", "add", "blob", url, "--use", "--json", stdin=subprocess.PIPE)
    assert added.communicate(KEY, timeout=60) and added.returncode == 0
    for name in ("ants", "bees"):
        shell.write(f"{name}/a.jpg", f"picture of {name}")
        shell.stoker("data", "put", name, "--name", name)
    shell.write("train.py", SLEEPS)
    shell.job("python train.py", data={"x": {"dataset": "ants", "mode": "download"}})
    shell.stoker("run", "--detach")
    shell.write("train.py", "print('other code')")
    shell.job("python train.py", data={"x": {"dataset": "bees", "mode": "download"}})
    shell.stoker("run")
    shell.wait_for(lambda: "here" in shell.stoker("logs", "job-1").stdout, "the script")
    run, other = shell.facts("job-1"), shell.facts("job-2")
    held = Path(shell.home / "nodes" / run["attempts"][-1]["key"] / "access").read_text()
    # What a server puts there when half of an access' time is over.
    store = open_store(url, azurite.account_key)
    store.put(layout.access(run["id"], 1), b"sealed")
    store.put(layout.access(other["id"], 1), b"sealed for another")
    ids = (run["id"], other["id"], run["snapshot"], other["snapshot"])
    return Scene(azurite, url, Access.from_text(held), *ids)


def test_the_store_holds_what_the_others_must_not_reach(scene: Scene) -> None:
    """Or the tests below would show nothing."""
    names = {name for _, name in scene.blobs()}
    assert {layout.record(scene.run), layout.record(scene.other), layout.dataset_record("bees")} <= names
    assert {layout.code(scene.snapshot), layout.code(scene.other_snapshot)} <= names
    assert sum(name.startswith(layout.contents("bees")) for name in names) == 1
    assert (scene.container(layout.run(scene.other)), "attempts/1/access/node-0") in scene.blobs()


def test_a_node_reads_its_run_its_code_and_the_datasets_that_its_job_names_and_nothing_else(scene: Scene) -> None:
    tokens = {route.token for route in scene.access.routes}
    everything = scene.blobs()
    read = {one for one in everything for token in tokens if scene.asks(token, "GET", "/".join(one))}
    own, ants = scene.container(layout.run(scene.run)), scene.container(layout.dataset("ants"))
    code = (scene.container(layout.code(scene.snapshot)), layout.code(scene.snapshot))
    assert read == {one for one in everything if one[0] in (own, ants)} | {code}


def test_a_node_lists_its_run_and_the_datasets_that_its_job_names_and_nothing_else(scene: Scene) -> None:
    tokens = {route.token for route in scene.access.routes}
    containers = {container for container, _ in scene.blobs()} | {locate(scene.url).container}
    listed = {
        container
        for container in containers
        for token in tokens
        if scene.asks(token, "GET", container, "restype=container&comp=list")
    }
    assert listed == {scene.container(layout.run(scene.run)), scene.container(layout.dataset("ants"))}
    assert not any(scene.asks(token, "GET", "", "comp=list") for token in tokens), "the containers of the account"


def test_a_node_writes_and_deletes_in_its_own_run_and_nowhere_else(scene: Scene) -> None:
    tokens = {route.token for route in scene.access.routes}
    own = scene.container(layout.run(scene.run))
    before = {one for one in scene.blobs() if one[0] != own}
    for token in tokens:
        for container, name in before:
            assert not scene.asks(token, "PUT", f"{container}/{name}", body=b"forged"), name
            assert not scene.asks(token, "DELETE", f"{container}/{name}"), name
            assert not scene.asks(token, "PUT", f"{container}/new", body=b"forged"), container
    assert {one for one in scene.blobs() if one[0] != own} == before
    assert any(scene.asks(token, "PUT", f"{own}/new", body=b"mine") for token in tokens)
    assert any(scene.asks(token, "DELETE", f"{own}/new") for token in tokens)


def test_what_outlives_an_access_reads_the_place_of_the_next_one_and_nothing_else(scene: Scene) -> None:
    tickets = {
        route.token for route in scene.access.routes if sas_expires_at(route.token) > scene.access.expires_at + 3600
    }
    assert tickets
    everything, own = scene.blobs(), scene.container(layout.run(scene.run))
    read = {one for one in everything for token in tickets if scene.asks(token, "GET", "/".join(one))}
    assert read == {(own, "attempts/1/access/node-0")}
    for token in tickets:
        assert parse_qs(token)["sr"] == ["b"] and parse_qs(token)["sp"] == ["r"]
        assert not scene.asks(token, "GET", own, "restype=container&comp=list")
        assert not scene.asks(token, "PUT", f"{own}/attempts/1/access/node-0", body=b"forged")


def test_nothing_of_the_access_lies_in_the_environment_of_any_process(shell: Shell, azurite: Azurite) -> None:
    """A script runs as the same user as its agent, and can read what that was started with."""
    added = shell.start("store", "add", "blob", azurite.new_container(), "--use", "--json", stdin=subprocess.PIPE)
    assert added.communicate(KEY, timeout=60) and added.returncode == 0
    shell.write("look.py", LOOKS_AROUND)
    shell.job(f"python look.py {shell.home}")
    assert shell.stoker("run").stdout == "looked at several\n"
