"""A whole team on Azure, on the twin: an administrator sets it up, a practitioner joins with one file and their own
login, trains, and in the end nothing is left."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, served, weather
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(900)]

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
    hostile: bool = False

    @property
    def file(self) -> Path:
        return self.admin.folder / "vision-team.json"

    @property
    def patience_s(self) -> float:
        """A hostile Azure takes four times as long for each operation, and there are two machines after each other."""
        return 300 if self.hostile else 120

    def set_up(self, *more: str) -> Any:
        """With what practitioners need."""
        words = ["--workspace", "vision-team", "--region", "eastus", "--budget", "200", "--mail", "admin@example.org"]
        words += ["--practitioner", self.person["object_id"], "--twin", "--yes", *more]
        return self.admin.stoker("admin", "setup", "azure", *words, patience_s=300)

    def join(self, code: int = 0) -> Any:
        """The twin is the administrator's, so that Anna has to agree to its host."""
        return self.anna.stoker("workspace", "use", str(self.file), "--trust", "127.0.0.1", code=code)

    def log_in(self) -> None:
        self.anna.environ |= {name: self.person[name] for name in LOGIN}

    def cloud(self) -> Any:
        return json.loads(self.admin.stoker("twin", "status", "--json").stdout)["twin"]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def team(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    root = tmp_path_factory.mktemp("team")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON", "AZURE_"))}
    shells = []
    for name in ("admin", "anna"):
        (root / name).mkdir()
        shells.append(Shell(root / f"{name}-home", root / name, {**keep, "STOKER_HOME": str(root / f"{name}-home")}))
    admin, anna = shells
    admin.stoker("twin", "up", *weather(request))
    person = json.loads(admin.stoker("twin", "person", "anna", "--json").stdout)
    try:
        yield Team(admin, anna, person, request.param == "hostile")
    finally:
        for shell in shells:
            shell.stoker("server", "stop", code=None)
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
    told = team.join(code=1)
    assert "fail" in told.stdout and "Storage Blob Data Contributor" in told.stdout
    assert "stoker admin setup azure --workspace vision-team --practitioner" in told.stderr
    assert not (team.anna.home / "azure.json").exists()
    assert json.loads(team.anna.stoker("workspace", "ls", "--json").stdout) == {"workspaces": [], "in_use": None}


def test_a_practitioner_joins_with_the_file_and_a_login(team: Team) -> None:
    team.log_in()
    refused = team.anna.stoker("workspace", "use", str(team.file), code=2)
    assert "accounts.azure.arm  127.0.0.1:" in refused.stderr, "another's twin is nobody that she knows"
    told = team.join()
    assert "using workspace vision-team" in told.stderr
    stores = json.loads(team.anna.stoker("store", "ls", "--json").stdout)["stores"]
    assert [one["name"] for one in stores if one["workspace"]] == ["vision-team"]
    known = json.loads(team.anna.stoker("workspace", "ls", "--json").stdout)
    assert known["in_use"] == "vision-team"
    shown = team.anna.stoker("workspace", "show").stdout
    assert "azure subscription" in shown and "export AZURE_TENANT_ID" in shown
    for path in team.anna.home.rglob("*.json"):
        assert team.person["AZURE_CLIENT_SECRET"] not in path.read_text(), path


def test_the_administrators_own_twin_needs_no_consent(team: Team) -> None:
    team.admin.environ |= {name: team.person[name] for name in LOGIN}
    assert "using workspace" in team.admin.stoker("workspace", "use", str(team.file)).stderr
    team.admin.stoker("server", "stop")
    for name in LOGIN:
        del team.admin.environ[name]


def test_her_job_runs_with_her_own_rights_and_nothing_is_taken_from_under_it(team: Team) -> None:
    before = team.cloud()["resources"]
    team.anna.write("train.py", TRAIN)
    steps = "400" if team.hostile else "150"  # it is still working when somebody tries to remove everything
    team.anna.job("python3 train.py", on="azure", env={"STEPS": steps})
    team.anna.stoker("run", "--detach", "--name", "first")
    team.anna.wait_for(lambda: "training" in team.anna.stoker("logs", "first").stdout, "its first line", 90)
    words = ("admin", "teardown", "azure", "--workspace", "vision-team", "--twin", "--yes")
    refused = team.admin.stoker(*words, "--json", code=2, patience_s=180)
    assert json.loads(refused.stdout)["error"]["cause"] == Cause.RUN_ACTIVE
    team.anna.wait_for(lambda: team.anna.facts("first")["state"] == "succeeded", "its end", 150)
    landed = Path(team.anna.wait_for(lambda: team.anna.facts("first")["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == "trained"
    team.anna.wait_for(lambda: team.cloud()["resources"] == before, "her machine to be gone")


KEEPS = """
    import hashlib, os, time
    print("has", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
    time.sleep(600)
"""
# With the token that its own machine gives to anybody on it, a script turns on the machine of another run.
ATTACKS = """
    import json, os, urllib.error, urllib.request

    imds = "http://169.254.169.254/metadata"
    def ask(url, method="GET", **headers):
        data = None if method == "GET" else b"{}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    arm, victim = os.environ["ARM"], os.environ["VICTIM"]
    told = ask(f"{imds}/identity/oauth2/token?api-version=2018-02-01&resource={arm}", Metadata="true")
    token = {"Authorization": "Bearer " + json.loads(told[1])["access_token"]}
    own = ask(f"{imds}/instance/compute/resourceId?api-version=2021-02-01&format=text", Metadata="true")[1].decode()
    group = victim.split("/providers/")[0]
    def arm_says(method, path):
        return ask(f"{arm}{path}?api-version=2024-07-01", method, **token)[0]
    if int(os.environ["STOKER_ATTEMPT"]) == 1:
        asked = [("GET", victim), ("DELETE", victim)]
        asked += [("POST", victim + "/deallocate"), ("POST", victim + "/runCommand")]
        asked += [("GET", group + "/resources"), ("DELETE", group), ("PATCH", own), ("POST", own + "/runCommand")]
        print("refused", [arm_says(*one) for one in asked], flush=True)
        import time
        time.sleep(3)  # for the line to get to the store
        arm_says("DELETE", own)
        time.sleep(600)
"""


def test_neither_a_node_nor_a_colleague_reaches_somebody_elses_machine_or_its_secrets(team: Team) -> None:
    """The values of secrets are nowhere on the machine's disk while the run has them, nor is a token that writes."""
    bob = json.loads(team.admin.stoker("twin", "person", "bob", "--json").stdout)
    team.set_up("--practitioner", bob["object_id"])
    anna, before, secret = team.anna, team.cloud()["resources"], "hf-8f14e45fceea167a5a36dedd4bea2543"
    anna.environ["HF_TOKEN"] = secret
    anna.write("train.py", KEEPS)
    anna.job("python3 train.py", on="azure", secrets=["HF_TOKEN"])
    anna.stoker("run", "--detach", "--name", "victim")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    anna.wait_for(lambda: f"has {digest}" in anna.stoker("logs", "victim").stdout, "its first line", 90)
    (machine,) = team.cloud()["machines"]
    assert holding(team.admin.home / "twin" / "machines", b"agent_sha256"), "what it was told at its start is there"
    for word in (secret.encode(), base64.b64encode(secret.encode())[:-4], b"sp=racwdl", b"sp%3Dracwdl"):
        assert holding(team.admin.home / "twin" / "machines", word) == [], word
    told = json.loads((team.admin.home / "twin" / "twin.json").read_text())
    # From here on requests are refused for lack of a right, and not by the weather.
    Cloud(told).ask("weather", throttled=0.0, lost=0.0, failed=0.0, allocation_failures=0.0)
    for method, below in (
        *(("POST", "/runCommand"), ("POST", "/deallocate"), ("DELETE", ""), ("PATCH", "")),
        *(("PUT", "/extensions/ssh"), ("PUT", "/providers/Microsoft.Authorization/roleAssignments/x")),
    ):
        assert as_person(told, bob, method, machine["vm"] + below) == 403, (method, below)
    anna.write("attack.py", ATTACKS)
    anna.job("python3 attack.py", on="azure", env={"ARM": told["url"], "VICTIM": machine["vm"]})
    anna.stoker("run", "--detach", "--name", "attacker")
    anna.wait_for(lambda: anna.facts("attacker")["state"] == "succeeded", "the attacker's end", team.patience_s)
    said = anna.stoker("logs", "attacker", "--attempt", "1").stdout
    assert f"refused {[403] * 8}" in said, anna.stoker("show", "attacker").stdout
    assert [one["state"] for one in anna.facts("attacker")["attempts"]] == ["evicted", "ended"], "it removed itself"
    assert anna.facts("victim")["state"] == "running"
    anna.stoker("cancel", "victim", "--yes")
    anna.wait_for(lambda: team.cloud()["resources"] == before, "both machines to be gone", team.patience_s)


def holding(folder: Path, word: bytes) -> list[str]:
    """Files below a folder in which this occurs."""
    found = subprocess.run(["grep", "-rlaF", word, folder], capture_output=True, text=True)
    return found.stdout.splitlines()


def as_person(told: dict[str, Any], person: dict[str, str], method: str, path: str) -> int:
    """Azure's response to a user's own login."""
    context = ssl.create_default_context(cafile=told["authority"])
    form = {"grant_type": "client_credentials", "scope": f"{told['url']}/.default"}
    form |= {"client_id": person["AZURE_CLIENT_ID"], "client_secret": person["AZURE_CLIENT_SECRET"]}
    login = Request(f"{told['url']}/{told['tenant']}/oauth2/v2.0/token", urlencode(form).encode())
    with urlopen(login, context=context, timeout=30) as answer:
        headers = {"Authorization": f"Bearer {json.load(answer)['access_token']}", "Content-Type": "application/json"}
    try:
        url = f"{told['url']}{path}?api-version=2024-07-01"
        with urlopen(Request(url, b"{}", headers, method=method), context=context, timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.slow
def test_a_machine_whose_server_is_gone_removes_itself_with_its_one_right(team: Team) -> None:
    team.set_up()
    team.log_in()
    team.join()
    team.anna.write("train.py", TRAIN)
    before = team.cloud()["resources"]
    account = team.anna.home / "azure.json"
    lease_s = 40.0 if team.hostile else 5.0  # longer than the server is away while the workspace is joined again
    account.write_text(json.dumps({**json.loads(account.read_text()), "lease_s": lease_s}))
    team.anna.stoker("server", "stop")
    team.anna.job("python3 train.py", on="azure", env={"STEPS": "100000"})
    team.anna.stoker("run", "--detach", "--name", "live")
    team.anna.wait_for(lambda: "training" in team.anna.stoker("logs", "live").stdout, "its first line", 90)
    joined = team.anna.stoker("workspace", "use", str(team.file))
    assert "using workspace" in joined.stderr, "the same workspace again is fine while a run is live"
    assert json.loads(account.read_text())["lease_s"] == lease_s, "what she added of her own stays"
    assert served(team.anna.facts("live")) == ["running"], "it has kept its machine so far"
    team.anna.stoker("server", "stop")
    team.anna.wait_for(lambda: team.cloud()["machines"] == [], "the machine to remove itself", 90 + lease_s)
    assert team.cloud()["usd_per_hour"] == 0
    assert team.cloud()["resources"] == before + 1, "the record of its deployment, which costs nothing"
    team.anna.stoker("cancel", "live", "--yes")
    team.anna.wait_for(lambda: team.cloud()["resources"] == before, "nothing to be left", team.patience_s)


def test_a_teardown_proves_that_nothing_is_left(team: Team) -> None:
    words = ("admin", "teardown", "azure", "--workspace", "vision-team", "--twin", "--yes")
    done = team.admin.stoker(*words, patience_s=300)
    (account,) = (line for line in done.stdout.splitlines() if line.startswith("storage account"))
    assert account.split()[-1] in ("B", "kB", "MB"), "how much data would be lost"
    assert done.stderr.splitlines()[-1] == "0 resources left, $0.00 a month"
    assert (team.cloud()["resources"], team.cloud()["roles"]) == (0, 0)
