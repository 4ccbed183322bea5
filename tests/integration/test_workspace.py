"""Using the workspace of a file: what it changes on this computer, what it leaves alone, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shell import Shell

from stoker.model.handover import Handover, TeamStore

ACCOUNT = {"subscription": "s1", "workspace": "vision-team", "regions": ["westeurope"]}


def hand_over(shell: Shell, name: str = "vision-team", *, account: dict[str, Any] | None = None) -> Path:
    """The file of a team whose store is a folder, so that no cloud is needed; nobody asks the account for anything."""
    place = shell.folder / f"{name}-store"
    place.mkdir(exist_ok=True)
    store = TeamStore(name, f"file://{place}", "none")
    path = shell.folder / f"{name}.json"
    path.write_text(Handover(name, {"azure": account or ACCOUNT}, store, ("az login",)).to_text())
    return path


def account_of(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shell.home / "azure.json").read_text())
    return found


def test_the_file_sets_account_and_store_up_and_can_be_used_again_by_name(shell: Shell) -> None:
    told = json.loads(shell.stoker("workspace", "use", str(hand_over(shell)), "--json").stdout)
    assert told["used"] is True
    assert account_of(shell) == ACCOUNT
    shell.job("echo hello")
    shell.stoker("run", "--name", "one")
    assert list((shell.folder / "vision-team-store" / "runs").iterdir()), "new runs are kept in the team's store"
    other = {"subscription": "s2", "workspace": "speech-team"}
    shell.stoker("workspace", "use", str(hand_over(shell, "speech-team", account=other)))
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
    told = shell.stoker("workspace", "use", str(hand_over(shell)))
    assert f"what was there before is now {shell.home / 'azure.json.before'}" in told.stderr
    assert json.loads((shell.home / "azure.json.before").read_text()) == mine
    assert account_of(shell) == ACCOUNT


def test_what_a_practitioner_adds_stays_when_the_team_changes_something(shell: Shell) -> None:
    shell.stoker("workspace", "use", str(hand_over(shell)))
    (shell.home / "azure.json").write_text(json.dumps({**ACCOUNT, "ssh_key": "ssh-ed25519 AAAA"}))
    moved = {**ACCOUNT, "regions": ["eastus"]}
    shell.stoker("workspace", "use", str(hand_over(shell, account=moved)))
    assert account_of(shell) == {**moved, "ssh_key": "ssh-ed25519 AAAA"}
    assert not (shell.home / "azure.json.before").exists()


def test_a_store_that_does_not_work_changes_nothing(shell: Shell) -> None:
    shell.stoker("workspace", "use", str(hand_over(shell)))
    path = hand_over(shell, "speech-team", account={"subscription": "s2", "workspace": "speech-team"})
    (shell.folder / "speech-team-store").rmdir()
    (shell.folder / "speech-team-store").write_text("in the way")
    told = shell.stoker("workspace", "use", str(path), code=1)
    assert "fail" in told.stdout
    assert "nothing was changed" in told.stderr
    assert account_of(shell) == ACCOUNT
    assert json.loads(shell.stoker("workspace", "ls", "--json").stdout)["in_use"] == "vision-team"


def test_another_account_has_to_wait_for_runs_that_are_live_on_this_one(shell: Shell) -> None:
    """Of any provider: here of the one that needs no cloud."""
    shell.job("sleep 100")
    shell.stoker("run", "--detach", "--name", "waiting")
    path = hand_over(shell)
    path.write_text(path.read_text().replace('"azure"', '"local"'))
    told = shell.stoker("workspace", "use", str(path), code=2)
    assert "waiting is under way: in another workspace its machine would be out of sight" in told.stderr
    assert not (shell.home / "local.json").exists()
    shell.stoker("cancel", "waiting", "--yes", code=None)
    shell.ended("waiting")
    shell.stoker("workspace", "use", str(path))
    assert json.loads((shell.home / "local.json").read_text()) == ACCOUNT
