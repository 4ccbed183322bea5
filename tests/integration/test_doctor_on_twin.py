"""`stoker doctor --cloud`: an account is checked, and with a budget a real run is evicted, resumed and removed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, weather
from shell import Shell

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("doctor")
    (root / "project").mkdir()
    (root / "home").mkdir(mode=0o700)
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    shell.stoker("twin", "up", "--speed", "4", *weather(request))
    yield shell
    shell.stoker("server", "stop", code=None)
    shell.stoker("twin", "down", "--forget", code=None)
    shell.wait_for(lambda: not shell.processes(), "everything to be gone")


def twin_of(shell: Shell) -> Cloud:
    return Cloud(json.loads((shell.home / "twin" / "twin.json").read_text()))


def doctor(shell: Shell, *more: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = shell.stoker("doctor", "--cloud", "azure-twin", "--json", *more, code=code, patience_s=500)
    told = json.loads(done.stdout)
    assert ("wrote all requests to the cloud" in done.stderr) == ("--record" in more)
    assert told["ok"] == (code == 0)
    return {one["name"]: one for one in told["findings"]}


def test_a_spot_machine_is_evicted_resumed_and_removed_within_the_budget(shell: Shell, tmp_path: Path) -> None:
    report, record = tmp_path / "azure.md", tmp_path / "asked.jsonl"
    found = doctor(shell, "--spend", "0.05", "--report", str(report), "--record", str(record))
    assert [one for one in found.values() if one["verdict"] != "ok"] == []
    assert re.search(r"\d s ", found["machine"]["found"])
    assert found["restore policy"]["found"].endswith(" min")
    assert "s notice" in found["eviction"]["found"]
    assert re.search(r"\d s ", found["resume"]["found"])
    assert "end" in found and found["cost"]["found"].endswith("$0.0500")
    cloud = twin_of(shell)
    assert cloud.ask("status")["usd_per_hour"] == 0
    assert not cloud.machines()
    text, asked = report.read_text(), record.read_text()
    assert "| resume | ok |" in text
    assert "| evicted |" in text
    told = cloud.told
    for private in (told["subscription"], told["tenant"], told["client_id"], told["client_secret"]):
        assert private not in text
        assert private not in asked
    assert any(  # the server's own requests are included, too
        one["method"] == "PUT" and "/deployments/" in one["url"] for one in map(json.loads, asked.splitlines())
    )
    assert not (shell.home / "azure.record").exists()


def test_an_amount_below_the_shortest_run_starts_nothing(shell: Shell) -> None:
    found = doctor(shell, "--spend", "0.0001", code=1)
    assert found["machine"]["verdict"] == "fail"
    assert "at least $0.0" in found["machine"]["found"]
    assert not twin_of(shell).machines()


def test_nothing_is_spent_where_a_check_has_failed(shell: Shell) -> None:
    cloud = twin_of(shell)
    cloud.ask("subscription", state="Disabled")
    try:
        found = doctor(shell, "--spend", "0.05", code=1)
    finally:
        cloud.ask("subscription", state="Enabled")
    assert (found["subscription"]["verdict"], found["proof"]["verdict"]) == ("fail", "skip")
    assert "machine" not in found
