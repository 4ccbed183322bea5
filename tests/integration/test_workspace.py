"""Using the workspace of a file: what it changes on this computer, what it leaves alone, and what is refused."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.client.local.workspace import Workspaces
from stoker.client.settings import from_environment
from stoker.errors import Conflict
from stoker.model.cause import Cause
from stoker.model.workspace.handover import Handover, TeamStore

ACCOUNT = {"subscription": "s1", "workspace": "vision-team", "regions": ["westeurope"]}


def hand_over(shell: Shell, name: str = "vision-team", *, account: dict[str, Any] | None = None) -> Path:
    """The file of a team whose store is a folder, so that no cloud is needed; no request is sent to the account."""
    place = shell.folder / f"{name}-store"
    place.mkdir(exist_ok=True)
    store = TeamStore(name, f"file://{place}", "none")
    path = shell.folder / f"{name}.json"
    path.write_text(Handover(name, {"azure": account or ACCOUNT}, store, ("az login",)).to_text())
    return path


def use(shell: Shell, path: Path, *more: str, code: int | None = 0) -> Any:
    """With consent to its folder, and to nothing else."""
    place = json.loads(path.read_text())["store"]["url"]
    return shell.stoker("workspace", "use", str(path), "--trust", place, *more, code=code)


def account_of(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shell.home / "azure.json").read_text())
    return found


def test_the_file_sets_account_and_store_up_and_can_be_used_again_by_name(shell: Shell) -> None:
    told = json.loads(use(shell, hand_over(shell), "--json").stdout)
    assert told["used"] is True
    assert account_of(shell) == ACCOUNT
    shell.job("echo hello")
    shell.stoker("run", "--name", "one")
    assert list((shell.folder / "vision-team-store" / "runs").iterdir()), "new runs are kept in the team's store"
    other = {"subscription": "s2", "workspace": "speech-team"}
    use(shell, hand_over(shell, "speech-team", account=other))
    assert account_of(shell) == other
    shell.stoker("workspace", "use", "vision-team")
    assert account_of(shell) == ACCOUNT
    listed = json.loads(shell.stoker("workspace", "ls", "--json").stdout)
    assert listed["in_use"] == "vision-team"
    assert [one["name"] for one in listed["workspaces"]] == ["speech-team", "vision-team"]


def test_what_was_written_by_hand_gives_way_under_another_name(shell: Shell) -> None:
    shell.home.mkdir()
    mine = {"subscription": "mine", "workspace": "own"}
    (shell.home / "azure.json").write_text(json.dumps(mine))
    told = use(shell, hand_over(shell))
    assert str(shell.home / "azure.json.before") in told.stderr
    assert json.loads((shell.home / "azure.json.before").read_text()) == mine
    assert account_of(shell) == ACCOUNT


def test_what_a_practitioner_adds_stays_when_the_team_changes_something(shell: Shell) -> None:
    use(shell, hand_over(shell))
    (shell.home / "azure.json").write_text(json.dumps({**ACCOUNT, "ssh_key": "ssh-ed25519 AAAA"}))
    moved = {**ACCOUNT, "regions": ["eastus"]}
    shell.stoker("workspace", "use", str(hand_over(shell, account=moved)))  # the folder was agreed to before
    assert account_of(shell) == {**moved, "ssh_key": "ssh-ed25519 AAAA"}
    assert not (shell.home / "azure.json.before").exists()


def test_a_store_that_does_not_work_changes_nothing(shell: Shell) -> None:
    use(shell, hand_over(shell))
    path = hand_over(shell, "speech-team", account={"subscription": "s2", "workspace": "speech-team"})
    (shell.folder / "speech-team-store").rmdir()
    (shell.folder / "speech-team-store").write_text("in the way")
    told = use(shell, path, code=1)
    assert "fail" in told.stdout
    assert account_of(shell) == ACCOUNT
    assert json.loads(shell.stoker("workspace", "ls", "--json").stdout)["in_use"] == "vision-team"


def test_another_account_has_to_wait_for_runs_that_are_live_on_this_one(shell: Shell) -> None:
    """Of any provider: here of the one that needs no cloud, which no file can name."""
    shell.job("sleep 100")
    shell.stoker("run", "--detach", "--name", "waiting")
    workspaces, team = Workspaces(from_environment(shell.environ)), Handover("vision-team", {"local": ACCOUNT})
    with pytest.raises(Conflict, match="waiting"):
        workspaces.use(team)
    assert not (shell.home / "local.json").exists()
    shell.stoker("cancel", "waiting", "--yes", code=None)
    shell.ended("waiting")
    workspaces.use(team)
    assert json.loads((shell.home / "local.json").read_text()) == ACCOUNT


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[bytes]]]:
    """A host that writes down whatever it is sent."""
    heard: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                heard.append(connection.recv(65536))
                connection.close()

    threading.Thread(target=listen, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}", heard
    server.close()


@pytest.mark.parametrize("field", ["secret_file", "ca_file", "client"])
def test_a_file_that_asks_for_a_private_key_is_refused_before_anybody_is_asked(
    shell: Shell, stranger: tuple[str, list[bytes]], field: str
) -> None:
    host, heard = stranger
    key = shell.write("id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----\nhush\n")
    asked = {**ACCOUNT, "tenant": "t", field: str(key), "login": f"https://{host}"}
    told = shell.refused("workspace", "use", str(hand_over(shell, account=asked)), "--trust", host)
    assert told["cause"] == Cause.HANDOVER_INVALID and f"`accounts.azure.{field}`" in told["message"]
    assert not heard and not shell.home.exists()


@pytest.mark.parametrize("part", ["account", "store", "authority"])
def test_a_host_that_is_not_the_clouds_own_hears_nothing_without_consent(
    shell: Shell, stranger: tuple[str, list[bytes]], part: str
) -> None:
    host, heard = stranger
    shell.environ |= {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "hush"}
    account = {**ACCOUNT, "login": f"https://{host}"} if part == "account" else ACCOUNT
    values = {"authority": f"https://{host}"} if part == "authority" else {}
    url = f"http://{host}/team/stoker" if part == "store" else "https://team.blob.core.windows.net/stoker"
    team = Handover("vision-team", {"azure": account}, TeamStore("team", url, "login", values))
    path = shell.write("team.json", team.to_text())
    told = shell.stoker("workspace", "use", str(path), code=2)
    assert host in told.stderr and "--trust" in told.stderr
    assert not heard and not shell.home.exists()


def test_a_folder_of_this_computer_needs_consent(shell: Shell) -> None:
    told = shell.stoker("workspace", "use", str(hand_over(shell)), code=2)
    assert f"store.url  file://{shell.folder}/vision-team-store" in told.stderr
    assert not shell.home.exists()
