"""What must not end a run: a price that rises, a login or a key that is replaced, a store that hangs."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, TRAIN, Cloud, azure_user, begin, reaches, right_end, served, set_up, weather
from shell import Shell

pytestmark = [pytest.mark.timeout(800), pytest.mark.slow]
OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
STEPS = 60


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("on"), *weather(request)) as (shell, cloud):
        yield shell, cloud


def stays(shell: Shell, run: str, seconds: float) -> dict[str, Any]:
    """It is neither failed nor forgotten in this time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert shell.facts(run)["state"] in ("queued", "starting", "running"), shell.facts(run)["reason"]
        time.sleep(0.5)
    return shell.facts(run)


def test_a_store_that_hangs_for_half_a_minute_makes_no_node_lost(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "hung", STEPS, 0.8)
    reaches(shell, "hung", 3)
    follower = shell.start("logs", "-f", "hung")
    with cloud.blob.hanging():
        time.sleep(32)
    facts = right_end(shell, cloud, "hung", STEPS)
    assert served(facts) == ["ended"], facts["attempts"]
    shown, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert [json.loads(line)["step"] for line in shown.splitlines()] == list(range(1, STEPS + 1)), "each line once"


def test_a_price_above_the_limit_is_waited_out(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.write("train.py", TRAIN)
    size, region = "Standard_D2as_v5", "eastus"
    env = {"STEPS": "150", "STEP_S": "0.2"}
    shell.job("python3 train.py", on="azure", size=size, region=region, spot={"max_price": 0.2}, env=env)
    cloud.ask("price", size=size, region=region, usd_per_hour=0.02)
    shell.stoker("run", "--detach", "--name", "dear")
    reaches(shell, "dear", 3)
    cloud.ask("price", size=size, region=region, usd_per_hour=5.0)
    for vm in cloud.running():
        cloud.ask("evict", vm=vm, notice_s=0)
    shell.wait_for(lambda: served(shell.facts("dear"))[0] == "evicted", "the eviction by its price", 90)
    stays(shell, "dear", 45)

    def waits() -> bool:
        """Not always: with a price from before it is asked for now and then, and refused."""
        facts = shell.facts("dear")
        return facts["state"] == "queued" and ("an hour" in facts["reason"] or "price" in facts["reason"])

    shell.wait_for(waits, "it to wait for its price, and to say so", 90)
    cloud.ask("price", size=size, region=region, usd_per_hour=0.02)
    shell.wait_for(lambda: shell.facts("dear")["state"] == "succeeded", "a price that can be paid", 300)
    facts = right_end(shell, cloud, "dear", 150)
    assert {one["trouble"] for one in facts["attempts"]} <= {"", "price-too-high", "no-capacity"}


def test_a_login_that_expires_before_an_eviction_is_waited_for_with_azures_own_reason(
    user: tuple[Shell, Cloud],
) -> None:
    shell, cloud = user
    made = cloud.ask("principal", name="anna", secret="s3cret-s3cret")
    role = f"/providers/Microsoft.Authorization/roleDefinitions/{OWNER}"
    body = {"properties": {"principalId": made["object_id"], "roleDefinitionId": role}}
    place = f"/providers/Microsoft.Authorization/roleAssignments/{made['object_id']}"
    cloud.arm("PUT", place, body, "2022-04-01")
    cloud.until_admitted(made["client_id"], "s3cret-s3cret")
    secret = shell.home / "anna.secret"
    secret.write_text("s3cret-s3cret")
    secret.chmod(0o600)
    set_up(shell, cloud, client=made["client_id"], secret_file=str(secret))
    shell.stoker("server", "stop", code=None)
    try:
        begin(shell, "expired", STEPS)
        reaches(shell, "expired", 3)
        cloud.ask("principal", name="anna", secret="rotated-rotated")
        cloud.ask("logout", everybody=True)
        cloud.ask("evict", vm=cloud.running()[0], notice_s=0)
        facts = stays(shell, "expired", 20)
        assert "AADSTS7000215: Invalid client secret" in facts["reason"], facts["reason"]
        assert facts["hint"]
        secret.write_text("rotated-rotated")
        shell.wait_for(lambda: shell.facts("expired")["state"] == "succeeded", "it to continue by itself", 200)
    finally:
        set_up(shell, cloud)
        shell.stoker("server", "stop", code=None)
        cloud.arm("DELETE", place, version="2022-04-01")
    right_end(shell, cloud, "expired", STEPS)


def test_a_key_of_the_store_that_is_replaced_is_waited_for(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "rotated", STEPS)
    reaches(shell, "rotated", 3)
    fresh = base64.b64encode(b"another key of sixty-four bytes, as long as those of Azure are..").decode()
    cloud.blob.rotate(fresh)
    cloud.ask("evict", vm=cloud.running()[0], notice_s=0)
    facts = stays(shell, "rotated", 30)
    assert facts["cause"] == "store-failed", facts["reason"]
    assert "authenticate" in facts["reason"], "in the words of the service"
    shell.environ["FRESH_KEY"] = fresh
    shell.stoker("store", "add", "blob", shell.environ["BLOB_URL"], "--key", "--from-env", "FRESH_KEY", "--use")
    facts = right_end(shell, cloud, "rotated", STEPS)
    assert "lost" not in served(facts)[1:], facts["attempts"]
    assert Path(facts["landed"]).is_dir()
