"""A user whose jobs run on machines of a twin: an account, a store, a small training, and the weather in hand."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from blobservice import BlobService
from shell import Shell

from services import KEY

# Deterministic, and as unprepared for evictions as scripts are: it only writes its state where it always did.
TRAIN = """
    import hashlib, json, os, time
    from pathlib import Path

    place = Path(os.environ["STOKER_CHECKPOINTS"], "state.json")
    state = json.loads(place.read_text()) if place.exists() else {"step": 0, "weights": "0"}
    while state["step"] < int(os.environ["STEPS"]):
        time.sleep(float(os.environ["STEP_S"]))
        weights = hashlib.sha256(state["weights"].encode()).hexdigest()
        state = {"step": state["step"] + 1, "weights": weights}
        part = place.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(place)
        print(json.dumps({"step": state["step"], "loss": 1 / state["step"]}), flush=True)
        if str(state["step"]) in os.environ.get("REST_AT", "").split():
            time.sleep(float(os.environ["REST_S"]))
    Path(os.environ["STOKER_OUTPUTS"], "model.txt").write_text(state["weights"])
"""
STEPS, STEP_S = 100, 0.2

# Once as Azure is on a good day, and once as on a bad one: it refuses, delays and forgets whatever it may. A fixture of
# the test's file gets the weather as its parameter. What is hostile is part of every check in a few tests, and one of
# the long proofs in the others.
BOTH_WEATHERS = ["calm", pytest.param("hostile", marks=pytest.mark.slow)]
in_both_weathers = pytest.mark.parametrize(
    "user", ["calm", pytest.param("hostile", marks=pytest.mark.heavy)], indirect=True
)
in_both_weathers_at_length = pytest.mark.parametrize("user", BOTH_WEATHERS, indirect=True)


def weather(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Options of the twin."""
    return "--weather", str(getattr(request, "param", "calm"))


def served(facts: dict[str, Any], what: str = "state") -> list[Any]:
    """Of the attempts that got a machine: Azure may have had no capacity at first."""
    return [one[what] for one in facts["attempts"] if not one["trouble"]]


class Cloud:
    """The twin, as the weather has it in hand."""

    blob: BlobService  # where the runs of its user are kept

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self._context = ssl.create_default_context(cafile=told["authority"])

    def ask(self, word: str, **order: Any) -> Any:
        body = json.dumps(order).encode() if order else None
        request = Request(f"{self.told['url']}/twin/{word}", body, {"Authorization": f"Bearer {self.told['token']}"})
        with urlopen(request, context=self._context, timeout=30) as answer:
            return json.load(answer)

    def arm(self, method: str, path: str, body: Any = None, version: str = "2024-03-01") -> Any:
        """A request of the administrator, retried where Azure asks for that; the path is below the subscription."""
        told = self.told
        form = f"grant_type=client_credentials&client_id={told['client_id']}&client_secret={told['client_secret']}"
        place = f"{told['url']}/{told['tenant']}/oauth2/v2.0/token"
        login = Request(place, f"{form}&scope={told['url']}/.default".encode())
        with urlopen(login, context=self._context, timeout=30) as answer:
            headers = {"Authorization": f"Bearer {json.load(answer)['access_token']}"}
        data = None if body is None else json.dumps(body).encode()
        url = f"{told['url']}/subscriptions/{told['subscription']}{path}?api-version={version}"
        request = Request(url, data, {**headers, "Content-Type": "application/json"}, method=method)
        text = self._persisted(request)
        return json.loads(text) if text else None

    def _persisted(self, request: Request) -> bytes:
        for tries_left in reversed(range(8)):
            try:
                with urlopen(request, context=self._context, timeout=30) as answer:
                    return bytes(answer.read())
            except HTTPError as error:
                if error.code not in (403, 429, 500) or not tries_left:
                    raise
            except (URLError, ConnectionError, HTTPException):  # the answer was lost
                if not tries_left:
                    raise
            time.sleep(1.0)
        raise AssertionError

    def until_admitted(self, client: str, secret: str) -> None:
        """A role takes a while to count."""
        own = Cloud({**self.told, "client_id": client, "client_secret": secret})
        own.arm("GET", "/providers/Microsoft.Compute/virtualMachines")

    def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("status")["machines"]
        return found

    def running(self) -> list[str]:
        return [one["vm"] for one in self.machines() if one["power"] == "running"]

    def hostile(self) -> bool:
        return bool(self.ask("weather")["stretch"] > 1)

    def empty(self) -> bool:
        return bool(self.ask("status")["resources"] == 0)


@contextmanager
def azure_user(root: Path, *twin_options: str) -> Iterator[tuple[Shell, Cloud]]:
    (root / "project").mkdir()
    (root / "blob").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    with BlobService(root / "blob") as blob:
        try:  # also where this fails: a twin that nobody stops works on beside the tests that follow
            told = json.loads(shell.stoker("twin", "up", "--json", *twin_options).stdout)["twin"]
            cloud = Cloud(told)
            cloud.blob = blob
            cloud.ask("expose", port=blob.port)
            set_up(shell, cloud)
            shell.environ |= {"BLOB_KEY": KEY, "BLOB_URL": blob.azurite.new_container()}
            _add_store(shell)
            yield shell, cloud
        finally:
            shell.stoker("server", "stop", code=None)
            shell.stoker("twin", "down", "--forget", code=None)


@contextmanager
def colleague(shell: Shell, cloud: Cloud) -> Iterator[Shell]:
    """Somebody else with the same account and store, at another computer."""
    home, folder = (path.with_name(f"{path.name}-of-another") for path in (shell.home, shell.folder))
    for made in (home, folder):
        made.mkdir()
    other = Shell(home, folder, {**shell.environ, "STOKER_HOME": str(home)})
    set_up(other, cloud)
    _add_store(other)
    try:
        yield other
    finally:
        other.stoker("server", "stop", code=None)


def _add_store(shell: Shell) -> None:
    shell.stoker("store", "add", "blob", shell.environ["BLOB_URL"], "--key", "--from-env", "BLOB_KEY", "--use")


def set_up(shell: Shell, cloud: Cloud, **more: Any) -> None:
    """What an administrator hands over: the account of the twin. A running server does not notice it."""
    told, secret = cloud.told, shell.home / "azure.secret"
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
        **more,
    }
    (shell.home / "azure.json").write_text(json.dumps(account))


def begin(shell: Shell, name: str, steps: int = STEPS, step_s: float = STEP_S, rest_at: int = 0) -> None:
    """At `rest_at` it rests, long enough for whatever is to happen to it there, however busy this computer is."""
    shell.write("train.py", TRAIN)
    rests = {"REST_AT": str(rest_at), "REST_S": "45"} if rest_at else {}
    shell.job("python3 train.py", on="azure", spot=True, env={"STEPS": str(steps), "STEP_S": str(step_s), **rests})
    shell.stoker("run", "--detach", "--name", name)


def reaches(shell: Shell, run: str, step: int) -> None:
    def there() -> bool:
        metrics = shell.facts(run)["metrics"]
        return bool(metrics) and metrics["loss"]["step"] >= step

    shell.wait_for(there, f"step {step} of {run}", 200)


def weights_after(steps: int) -> str:
    """Of an undisturbed training."""
    weights = "0"
    for _ in range(steps):
        weights = hashlib.sha256(weights.encode()).hexdigest()
    return weights


def finishes(shell: Shell, run: str, steps: int = STEPS) -> dict[str, Any]:
    """Succeeded, with the very weights of an undisturbed training. It may do all of its steps from here on, on a
    computer that takes twice as long for each."""
    patience_s = 150 + 2 * steps * STEP_S
    shell.wait_for(
        lambda: shell.facts(run)["state"] not in ("queued", "starting", "running"), f"{run}'s end", patience_s
    )
    facts = shell.facts(run)
    assert facts["state"] == "succeeded", facts["reason"]
    landed = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == weights_after(steps)
    return facts


def right_end(shell: Shell, cloud: Cloud, run: str, steps: int = STEPS) -> dict[str, Any]:
    """Finished, and nothing is left in the cloud."""
    facts = finishes(shell, run, steps)
    shell.wait_for(cloud.empty, "nothing to be left", 150 if cloud.hostile() else 60)
    assert cloud.ask("status")["usd_per_hour"] == 0
    return facts


def timeline(shell: Shell, run: str) -> list[str]:
    told = json.loads(shell.stoker("show", run, "--json").stdout)
    return [event["kind"] for event in told["events"]]
