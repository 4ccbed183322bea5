"""What a job of Azure ML says: its tags, which people can change, and what its script prints for the studio."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.azureml import AzureMlProvider, bodies
from stoker.providers.azureml.node.starting import StudioMirror

TAGS = {
    bodies.TAG: "node",
    bodies.KEY: "r-1",
    bodies.SERVER: "abc",
    bodies.USD: "0.09",
    bodies.LEASE: "2026-03-01T00:00:00+00:00",
}


def job(name: str = "stoker-abc-r-1", **tags: str) -> dict[str, Any]:
    return {"name": name, "properties": {"status": "Running", "tags": {**TAGS, **tags}}}


def test_a_job_with_the_tags_of_a_node_is_one() -> None:
    lease = datetime(2026, 3, 1, tzinfo=UTC)
    assert bodies.read_tags(job()) == bodies.NodeTags("r-1", "abc", Decimal("0.09"), lease, began=False)


@pytest.mark.parametrize("copy", [job("olive_sail_1"), job(**{bodies.TAG: ""}), job(**{bodies.KEY: ""})])
def test_a_copy_of_a_job_is_no_node(copy: dict[str, Any]) -> None:
    """The studio copies tags, too: the node would be there twice, and never end."""
    assert bodies.read_tags(copy) is None


@pytest.mark.parametrize("name", [bodies.USD, bodies.LEASE])
@pytest.mark.parametrize("text", ["", "soon", "nan", "2026-03-01"])
def test_tags_that_a_person_has_changed_hide_no_node(name: str, text: str) -> None:
    told = bodies.read_tags(job(**{name: text}))
    assert told and told.key == "r-1" and told.usd.is_finite()
    assert told.lease is None or told.lease.tzinfo is UTC


class Studio(StudioMirror):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "https://tracking", "run", "token")
        self.sent: list[dict[str, Any]] = []

    def _send(self, points: list[dict[str, Any]]) -> None:
        self.sent += points


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Studio:
    (tmp_path / "spool").mkdir()
    monkeypatch.setattr(os, "write", lambda _, piece: len(piece))
    return Studio(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"loss": NaN, "step": 1}',
        '{"loss": -Infinity}',
        '{"loss": 1, "step": Infinity}',
        '{"loss": ' + "9" * 400 + "}",
        '{"loss": ' + "[" * 100_000,
        '{"values": 7}',
        "[1]",
    ],
)
def test_a_line_that_mlflow_would_not_take_costs_no_other_one(line: str, studio: Studio, tmp_path: Path) -> None:
    good = json.dumps({"step": 3, "loss": 0.5, "rank": 0})
    (tmp_path / "spool/0.log").write_text(f"{line}\n{good}\n")
    studio.copy()
    assert [(one["key"], one["value"], one["step"]) for one in studio.sent] == [("loss", 0.5, 3)]


def test_what_is_said_last_is_copied_once_by_one_thread(studio: Studio, tmp_path: Path) -> None:
    def over() -> int:
        (tmp_path / "spool/0.log").write_text('{"loss": 1}\n')
        return 0

    studio.run(over)
    assert [one["value"] for one in studio.sent] == [1.0]


class KeptWorkspace:
    """A workspace in memory, with one job and the files of its start."""

    def __init__(self, status: str = "") -> None:
        self.found = {**job(), "properties": {**job()["properties"], "status": status}} if status else None
        self.files = {"stoker/stoker-abc-r-1/sealed", "stoker/stoker-abc-r-2/sealed"}
        self.cancelled: list[str] = []

    def job(self, _: str) -> dict[str, Any] | None:
        return self.found

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)
        if self.found:
            self.found["properties"]["status"] = "Canceled"

    def remove(self, prefix: str) -> None:
        self.files = {one for one in self.files if not one.startswith(prefix)}

    def relabel(self, found: dict[str, Any], tags: dict[str, str]) -> None:
        found["properties"]["tags"] = tags


@pytest.mark.parametrize(
    ("status", "cancelled"),
    [("Running", True), ("NotResponding", True), ("Completed", False), ("Failed", False), ("", False)],
)
def test_a_stop_leaves_neither_a_job_that_may_still_work_nor_files(
    status: str, cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a job: the server ended between writing its files and submitting it."""
    (tmp_path / "azureml.json").touch()
    provider, workspace = AzureMlProvider(Setup(Home(tmp_path), server="abc")), KeptWorkspace(status)
    monkeypatch.setitem(provider.__dict__, "_workspace", workspace)
    provider.stop("r-1")
    provider.stop("r-1")
    assert workspace.cancelled == (["stoker-abc-r-1"] if cancelled else [])
    assert workspace.files == {"stoker/stoker-abc-r-2/sealed"}
    assert not workspace.found or bodies.TAG not in workspace.found["properties"]["tags"]
