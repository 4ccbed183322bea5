"""`stoker admin` as typed: what it shows, asks, writes and refuses to overwrite; on a twin in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import answer
from stoker.client.local import rehearsal
from stoker.model.cause import Cause
from stoker.model.workspace.groundwork import GivenOptions
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.setup.resources import GROUPS_API, WantedResource
from stoker.testing.twin import TwinHandle, twin


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=10) as handle:
        handle.order("blob", endpoint="nowhere:")
        yield handle


@pytest.fixture
def cloud(shared: TwinHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwinHandle]:
    """`--twin` means this one, and the current folder is empty."""
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_: asdict(shared.address))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield shared
    shared.forget()


def admin(*words: str) -> int:
    return answer(["admin", words[0], "azure", "--workspace", "vision-team", "--twin", *words[1:]])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_program_gets_the_plan_what_was_made_and_the_file(
    cloud: TwinHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--json"], ["--json", "--dry-run", "--yes"]):
        assert admin("setup", *words) == 0
        plan = told(capsys)
        assert (plan["made"], plan["file"]) == ([], None)
        assert {one["state"] for one in plan["pieces"]} == {"missing", "there"}
        assert not cloud.cloud.resources and not Path("vision-team.json").exists()
    assert admin("setup", "--json", "--yes") == 0
    done = told(capsys)
    assert [one["kind"] for one in done["made"]][:3] == ["role", "role", "role"]
    assert done["file"] == "vision-team.json"
    assert done["workspace"]["name"] == json.loads(Path("vision-team.json").read_text())["name"] == "vision-team"
    assert admin("setup", "--json", "--yes") == 0
    assert told(capsys)["made"] == []
    assert admin("teardown", "--json") == 0
    survey = told(capsys)
    assert survey["left"] == survey["pieces"] and survey["removed"] == []
    assert admin("teardown", "--json", "--yes") == 0
    gone = told(capsys)
    assert gone["left"] == [] and len(gone["removed"]) == len(survey["pieces"])
    assert not cloud.cloud.resources


def test_what_would_keep_runs_from_starting_ends_a_set_up_before_anything_is_made(
    cloud: TwinHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.order("subscription", state="Disabled")
    try:
        assert admin("setup", "--yes") == 1
        said = capsys.readouterr().err
        assert admin("setup", "--json", "--yes") == 1
        found = told(capsys)
    finally:
        cloud.order("subscription", state="Enabled")
    assert "fail  subscription" in said and "nothing can be created" in said
    assert [one["name"] for one in found["checks"] if one["verdict"] == "fail"] == ["subscription"]
    assert (found["made"], found["file"]) == ([], None)
    assert not cloud.cloud.resources and not Path("vision-team.json").exists()


def test_without_a_yes_nothing_is_made_or_removed(
    cloud: TwinHandle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True, False])
    monkeypatch.setattr("stoker.cli.view.terminal.ask", lambda _: next(answers))
    assert admin("setup") == 1
    assert not cloud.cloud.resources
    assert admin("setup") == 0
    there = dict(cloud.cloud.resources)
    assert admin("teardown") == 1
    assert dict(cloud.cloud.resources) == there


def test_a_file_that_is_something_else_is_not_overwritten_and_nothing_is_made(
    cloud: TwinHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.json").write_text("my notes")
    assert admin("setup", "--yes", "--json", "--out", "notes.json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["cause"] == Cause.FILE_EXISTS
    assert admin("setup", "--yes", "--json", "--out", "nowhere/team.json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["cause"] == Cause.FILE_UNWRITABLE
    assert Path("notes.json").read_text() == "my notes"
    assert not cloud.cloud.resources


def test_live_runs_hold_a_teardown_up_until_it_is_forced(cloud: TwinHandle, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("setup", "--yes") == 0
    tags = {"stoker-workspace": "vision-team", "stoker-node": "r1-1-0"}
    id = f"/subscriptions/{cloud.address.subscription}/resourceGroups/stoker-vision-team-r1-1-0"
    node = WantedResource("group", id, GROUPS_API, {"location": "eastus", "tags": tags}, "a node")
    open_cloud(GivenOptions({}, {}, asdict(cloud.address))).put(node)
    capsys.readouterr()
    assert admin("teardown", "--yes", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["cause"] == Cause.RUN_ACTIVE and "stoker-vision-team-r1-1-0" in error["message"]
    assert admin("teardown", "--yes", "--force") == 0
    assert capsys.readouterr().err.splitlines()[-1] == "0 resources left, $0.00 a month"
    assert not cloud.cloud.resources
