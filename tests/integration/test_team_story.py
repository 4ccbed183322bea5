"""A team on Azure, whole, on the twin: an administrator sets it up, a practitioner joins with one file and a login of
their own, trains, and in the end nothing is left."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

pytestmark = [pytest.mark.timeout(300)]

TRAIN = """
    import os, time
    from pathlib import Path

    print("training", flush=True)
    wait = Path(os.environ["STOKER_CHECKPOINTS"])
    for step in range(int(os.environ["STEPS"])):
        time.sleep(0.1)
        (wait / "step").write_text(str(step))
    Path(os.environ["STOKER_OUTPUTS"], "model.txt").write_text("trained")
"""
LOGIN = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")


@dataclass
class Team:
    admin: Shell
    anna: Shell
    person: dict[str, str]  # anna, as the twin knows her

    @property
    def file(self) -> Path:
        return self.admin.folder / "vision-team.json"

    def set_up(self, *more: str) -> Any:
        """With what practitioners need."""
        words = ["--workspace", "vision-team", "--region", "eastus", "--budget", "200", "--mail", "admin@example.org"]
        words += ["--practitioner", self.person["object_id"], "--twin", "--yes", *more]
        return self.admin.stoker("admin", "setup", "azure", *words)

    def log_in(self) -> None:
        self.anna.environ |= {name: self.person[name] for name in LOGIN}

    def cloud(self) -> Any:
        return json.loads(self.admin.stoker("twin", "status", "--json").stdout)["twin"]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    root = tmp_path_factory.mktemp("team")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON", "AZURE_"))}
    shells = []
    for name in ("admin", "anna"):
        (root / name).mkdir()
        shells.append(Shell(root / f"{name}-home", root / name, {**keep, "STOKER_HOME": str(root / f"{name}-home")}))
    admin, anna = shells
    person = json.loads(admin.stoker("twin", "person", "anna", "--json").stdout)
    try:
        yield Team(admin, anna, person)
    finally:
        anna.stoker("server", "stop", code=None)
        admin.stoker("twin", "down", "--forget", code=None)


def test_an_administrator_sets_up_and_hands_over_one_file(team: Team) -> None:
    made = team.set_up()
    assert "storage account" in made.stdout and "per GB" in made.stdout, "what it makes and costs is shown first"
    text = team.file.read_text()
    secrets = [team.person["AZURE_CLIENT_SECRET"], json.loads((team.admin.home / "twin/twin.json").read_text())]
    assert secrets[0] not in text and secrets[1]["client_secret"] not in text and secrets[1]["token"] not in text


def test_a_practitioner_who_is_not_admitted_is_told_what_lacks_and_nothing_changes(team: Team) -> None:
    stranger = json.loads(team.admin.stoker("twin", "person", "stranger", "--json").stdout)
    team.anna.environ |= {name: stranger[name] for name in LOGIN}
    told = team.anna.stoker("workspace", "use", str(team.file), code=1)
    assert "fail" in told.stdout and "Storage Blob Data Contributor" in told.stdout
    assert "nothing was changed" in told.stderr
    assert "stoker admin setup azure --workspace vision-team --practitioner" in told.stderr
    assert not (team.anna.home / "azure.json").exists()
    assert json.loads(team.anna.stoker("workspace", "ls", "--json").stdout) == {"workspaces": [], "in_use": None}


def test_a_practitioner_joins_with_the_file_and_a_login(team: Team) -> None:
    team.log_in()
    told = team.anna.stoker("workspace", "use", str(team.file))
    assert "the workspace vision-team is in use" in told.stderr
    stores = json.loads(team.anna.stoker("store", "ls", "--json").stdout)["stores"]
    assert [one["name"] for one in stores if one["workspace"]] == ["vision-team"]
    known = json.loads(team.anna.stoker("workspace", "ls", "--json").stdout)
    assert known["in_use"] == "vision-team"
    shown = team.anna.stoker("workspace", "show").stdout
    assert "azure subscription" in shown and "export AZURE_TENANT_ID" in shown
    for path in team.anna.home.rglob("*.json"):
        assert team.person["AZURE_CLIENT_SECRET"] not in path.read_text(), path


def test_her_job_runs_with_her_own_rights_and_nothing_is_taken_from_under_it(team: Team) -> None:
    before = team.cloud()["resources"]
    team.anna.write("train.py", TRAIN)
    team.anna.job("python3 train.py", on="azure", env={"STEPS": "50"})
    team.anna.stoker("run", "--detach", "--name", "first")
    team.anna.wait_for(lambda: "training" in team.anna.stoker("logs", "first").stdout, "its first line", 90)
    refused = team.admin.stoker("admin", "teardown", "azure", "--workspace", "vision-team", "--twin", "--yes", code=2)
    assert "runs are live in vision-team" in refused.stderr
    assert team.anna.ended("first")["state"] == "succeeded"
    landed = Path(team.anna.wait_for(lambda: team.anna.facts("first")["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == "trained"
    team.anna.wait_for(lambda: team.cloud()["resources"] == before, "her machine to be gone")


@pytest.mark.slow
def test_a_machine_whose_server_is_gone_removes_itself_with_its_one_right(team: Team) -> None:
    team.set_up()
    team.log_in()
    team.anna.stoker("workspace", "use", str(team.file))
    team.anna.write("train.py", TRAIN)
    before = team.cloud()["resources"]
    account = team.anna.home / "azure.json"
    account.write_text(json.dumps({**json.loads(account.read_text()), "lease_s": 5.0}))
    team.anna.stoker("server", "stop")
    team.anna.job("python3 train.py", on="azure", env={"STEPS": "100000"})
    team.anna.stoker("run", "--detach", "--name", "live")
    team.anna.wait_for(lambda: "training" in team.anna.stoker("logs", "live").stdout, "its first line", 90)
    joined = team.anna.stoker("workspace", "use", str(team.file))
    assert "is in use" in joined.stderr, "the same workspace again is fine while a run is live"
    assert json.loads(account.read_text())["lease_s"] == 5.0, "what she added of her own stays"
    team.anna.stoker("server", "stop")
    team.anna.wait_for(lambda: team.cloud()["resources"] == before, "the machine to remove itself", 90)


def test_a_teardown_proves_that_nothing_is_left(team: Team) -> None:
    done = team.admin.stoker("admin", "teardown", "azure", "--workspace", "vision-team", "--twin", "--yes")
    (account,) = (line for line in done.stdout.splitlines() if line.startswith("storage account"))
    assert account.split()[-1] in ("B", "kB", "MB"), "how much data would be lost"
    assert done.stderr.splitlines()[-1] == "0 resources left, $0.00 a month"
    assert team.cloud()["resources"] == 0
