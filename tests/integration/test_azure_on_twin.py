"""From nothing to results to nothing: jobs on spot machines of the twin, with real processes and the official SDKs."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from blobservice import BlobService
from shell import Shell

from services import KEY

pytestmark = [pytest.mark.xdist_group("twin"), pytest.mark.timeout(300)]

# Deterministic, and as unprepared for evictions as scripts are: it only writes its state where it always did.
TRAIN = """
    import hashlib, json, os, time
    from pathlib import Path

    place = Path(os.environ["STOKER_CHECKPOINTS"], "state.json")
    state = json.loads(place.read_text()) if place.exists() else {"step": 0, "weights": "0"}
    while state["step"] < int(os.environ["STEPS"]):
        time.sleep(0.2)
        weights = hashlib.sha256(state["weights"].encode()).hexdigest()
        state = {"step": state["step"] + 1, "weights": weights}
        part = place.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(place)
        print(json.dumps({"step": state["step"], "loss": 1 / state["step"]}), flush=True)
    Path(os.environ["STOKER_OUTPUTS"], "model.txt").write_text(state["weights"])
"""
STEPS = 100  # of 0.2 s


class Cloud:
    """The twin, as the weather has it in hand."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self._context = ssl.create_default_context(cafile=told["authority"])

    def ask(self, word: str, **order: Any) -> Any:
        body = json.dumps(order).encode() if order else None
        request = Request(f"{self.told['url']}/twin/{word}", body, {"Authorization": f"Bearer {self.told['token']}"})
        with urlopen(request, context=self._context, timeout=30) as answer:
            return json.load(answer)

    def running(self) -> list[str]:
        return [one["vm"] for one in self.ask("status")["machines"] if one["power"] == "running"]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    root = tmp_path_factory.mktemp("azure")
    (root / "project").mkdir()
    (root / "blob").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    with BlobService(root / "blob") as blob:
        told = json.loads(shell.stoker("twin", "up", "--json").stdout)["twin"]
        cloud = Cloud(told)
        cloud.ask("expose", port=blob.port)
        set_up(shell, told)
        shell.environ["BLOB_KEY"] = KEY
        shell.stoker("store", "add", "blob", blob.azurite.new_container(), "--key", "--from-env", "BLOB_KEY", "--use")
        yield shell, cloud
        shell.stoker("server", "stop", code=None)
        shell.stoker("twin", "down", "--forget", code=None)


def set_up(shell: Shell, told: dict[str, Any]) -> None:
    """What an administrator hands over: the account of the twin."""
    secret = shell.home / "azure.secret"
    secret.write_text(told["client_secret"])
    secret.chmod(0o600)
    account = {
        "subscription": told["subscription"],
        "tenant": told["tenant"],
        "client": told["client_id"],
        "secret_file": str(secret),
        "arm": told["url"],
        "login": told["url"],
        "prices": f"{told['url']}/api/retail/prices",
        "ca_file": told["authority"],
        "regions": ["eastus", "westus2"],
    }
    (shell.home / "azure.json").write_text(json.dumps(account))


def begin(shell: Shell, name: str) -> None:
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py", on="azure", spot=True, env={"STEPS": str(STEPS)})
    shell.stoker("run", "--detach", "--name", name)


def reaches(shell: Shell, run: str, step: int) -> None:
    def there() -> bool:
        metrics = shell.facts(run)["metrics"]
        return bool(metrics) and metrics["loss"]["step"] >= step

    shell.wait_for(there, f"step {step} of {run}", 120)


def right_end(shell: Shell, cloud: Cloud, run: str) -> dict[str, Any]:
    """Succeeded, with the very weights of an undisturbed training, and nothing is left in the cloud."""
    shell.wait_for(lambda: shell.facts(run)["state"] not in ("queued", "starting", "running"), f"{run}'s end", 150)
    facts = shell.facts(run)
    assert facts["state"] == "succeeded", facts["reason"]
    landed = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs"))
    weights = "0"
    for _ in range(STEPS):
        weights = hashlib.sha256(weights.encode()).hexdigest()
    assert (landed / "model.txt").read_text() == weights
    shell.wait_for(lambda: cloud.ask("status")["resources"] == 0, "nothing to be left", 60)
    assert cloud.ask("status")["usd_per_hour"] == 0
    return facts


def timeline(shell: Shell, run: str) -> list[str]:
    told = json.loads(shell.stoker("show", run, "--json").stdout)
    return [event["kind"] for event in told["events"]]


def test_evicted_with_notice_it_goes_on_elsewhere_and_nothing_is_left(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "noticed")
    reaches(shell, "noticed", 5)
    (vm,) = cloud.running()
    cloud.ask("evict", vm=vm, notice_s=8)
    facts = right_end(shell, cloud, "noticed")
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    happened = timeline(shell, "noticed")
    assert happened.index("asked-ahead") < happened.index("evicted"), "the next machine was asked for during the notice"


def test_evicted_without_notice_it_goes_on_from_its_last_checkpoint(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "sudden")
    reaches(shell, "sudden", 5)
    (vm,) = cloud.running()
    cloud.ask("evict", vm=vm, notice_s=0)
    facts = right_end(shell, cloud, "sudden")
    assert len(facts["attempts"]) == 2


def test_a_server_killed_meanwhile_finds_its_machine_again(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "orphan")
    reaches(shell, "orphan", 3)
    for _ in range(3):
        shell.kill_server()
        shell.stoker("ps")
        time.sleep(0.5)
    facts = right_end(shell, cloud, "orphan")
    assert len(facts["attempts"]) == 1


def test_a_cancelled_run_leaves_nothing(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "cancelled")
    reaches(shell, "cancelled", 2)
    shell.stoker("cancel", "cancelled")
    shell.wait_for(lambda: shell.facts("cancelled")["state"] == "cancelled", "the end")
    shell.wait_for(lambda: cloud.ask("status")["resources"] == 0, "nothing to be left")
    left = json.loads(shell.stoker("sweep", "--json").stdout)
    assert left == {"left": [], "removed": [], "others": []}


def test_a_size_that_is_not_to_be_had_is_looked_for_elsewhere(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    cloud.ask("fault", kind="allocation", times=1)
    begin(shell, "elsewhere")
    facts = right_end(shell, cloud, "elsewhere")
    assert [one["trouble"] for one in facts["attempts"]] == ["no-capacity", ""]
    assert facts["attempts"][1]["offer"]["place"] != facts["attempts"][0]["offer"]["place"]


def test_what_a_crash_has_left_is_found_and_removed(user: tuple[Shell, Cloud]) -> None:
    """A group with our tags that no run claims, as a crash between two calls leaves it."""
    shell, cloud = user
    shell.stoker("ps")
    own = (shell.home / "server.id").read_text().strip()
    make_group(cloud, "lost-1", {"stoker-server": own})
    assert "lost-1" in shell.stoker("sweep", "--yes").stdout
    assert json.loads(shell.stoker("sweep", "--json").stdout)["left"] == []


def test_what_another_server_has_is_its_own_until_its_lease_is_over(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    make_group(cloud, "busy-1", {"stoker-server": "another", "stoker-lease": "2099-01-01T00:00:00Z"})
    make_group(cloud, "dead-1", {"stoker-server": "another", "stoker-lease": "2020-01-01T00:00:00Z"})
    shown = shell.stoker("sweep", "--yes").stdout
    assert "another server's, lease until 00:00 UTC" in shown
    assert "another server's, lease over" in shown
    found = json.loads(shell.stoker("sweep", "--json").stdout)
    assert (found["left"], {one["key"] for one in found["others"]}) == ([], {"busy-1", "dead-1"})
    shell.stoker("sweep", "--others", "--yes")
    assert [one["key"] for one in json.loads(shell.stoker("sweep", "--json").stdout)["others"]] == ["busy-1"]
    arm(cloud, "DELETE", group_path(cloud, "busy-1"))
    shell.wait_for(lambda: cloud.ask("status")["resources"] == 0, "nothing to be left")


def make_group(cloud: Cloud, key: str, tags: dict[str, str]) -> None:
    tags = {"stoker-workspace": "default", "stoker-node": key, **tags}
    arm(cloud, "PUT", group_path(cloud, key), {"location": "eastus", "tags": tags})


def group_path(cloud: Cloud, key: str) -> str:
    return f"/subscriptions/{cloud.told['subscription']}/resourcegroups/stoker-default-{key}?api-version=2024-03-01"


def arm(cloud: Cloud, method: str, path: str, body: Any = None) -> None:
    """As its owner asks Azure."""
    told, context = cloud.told, ssl.create_default_context(cafile=cloud.told["authority"])
    form = f"grant_type=client_credentials&client_id={told['client_id']}&client_secret={told['client_secret']}"
    place = f"{told['url']}/{told['tenant']}/oauth2/v2.0/token"
    with urlopen(Request(place, f"{form}&scope={told['url']}/.default".encode()), context=context, timeout=30) as said:
        token = json.load(said)["access_token"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{told['url']}{path}", data, headers, method=method), context=context, timeout=30):
        pass
