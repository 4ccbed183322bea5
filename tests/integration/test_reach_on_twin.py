"""Into machines of a cloud: commands through the store, ssh with real keys, and nodes that are kept to be looked at."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, set_up, weather
from shell import Shell

from services import free_port
from stoker.model.cause import Cause

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root gives machines walls"),
]

# What TensorBoard would be: a page on a port of the machine's loopback.
SERVES = """
    import http.server
    from pathlib import Path
    Path("index.html").write_text("curves")
    server = http.server.HTTPServer(("127.0.0.1", 6006), http.server.SimpleHTTPRequestHandler)
    print("here", flush=True)
    server.serve_forever()
"""
FAILS = "from pathlib import Path; Path('clue').write_text('x is nan'); print('here', flush=True); raise SystemExit(3)"


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("reach"), *weather(request)) as made:
        yield made


def account(shell: Shell, cloud: Cloud, **more: Any) -> None:
    set_up(shell, cloud, **more)
    shell.stoker("server", "stop", code=None)  # the next one reads it


def begin(shell: Shell, name: str, script: str, **job: Any) -> None:
    shell.write("train.py", script)
    shell.job("python3 train.py", on="azure", **job)
    shell.stoker("run", "--detach", "--name", name)
    shell.wait_for(lambda: "here" in shell.stoker("logs", name).stdout, f"the first line of {name}", 200)


def new_key(folder: Path) -> Path:
    key = folder / "key"
    folder.mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return key


@pytest.mark.heavy
def test_into_a_machine_by_the_store_by_ssh_and_its_port_here(user: tuple[Shell, Cloud], tmp_path: Path) -> None:
    for tool in ("/usr/sbin/sshd", "sudo", "ssh-keygen"):
        assert shutil.which(tool), f"{tool} is missing: apt-get install openssh-server openssh-client sudo"
    shell, cloud = user
    key, stranger = new_key(tmp_path / "mine"), new_key(tmp_path / "theirs")
    public = key.with_suffix(".pub").read_text().strip()
    account(shell, cloud, open_ssh=True, ssh_key=public, ssh_from="127.0.0.1")
    begin(shell, "open", SERVES, env={"COLOUR": "green"})
    line = "hostname; pwd; echo $COLOUR $STOKER_RUN; exit 7"
    seen = "node\n/var/lib/stoker/node/work\ngreen open\n"
    assert shell.stoker("exec", "open", "--", "sh", "-c", line, code=7).stdout == seen
    assert shell.stoker("ssh", "open", "-i", str(key), "--", "sh", "-c", line, code=7).stdout == seen
    assert shell.stoker("ssh", "open", "-i", str(stranger), "--", "true", code=255).stdout == ""
    address = public_address(cloud)
    assert (greeting(address, "127.0.0.1"), greeting(address, "127.0.0.9")) == (b"SSH-", b""), "for `ssh_from` alone"
    port = free_port()
    with shell.start("ssh", "open", "-i", str(key), "-N", "-L", f"{port}:localhost:6006") as tunnel:
        shell.wait_for(lambda: _page(port) == b"curves", "the page", 30)
        tunnel.terminate()
        tunnel.wait(20)
    shell.stoker("cancel", "open", "--yes")
    shell.wait_for(cloud.empty, "nothing to be left")


@pytest.mark.heavy
def test_the_machine_of_a_failed_run_is_kept_looked_into_and_released(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.write("train.py", FAILS)
    shell.job("python3 train.py", on="azure")
    failed = shell.stoker("run", "--name", "nan", "--keep-failed", "30m", code=3, patience_s=200)
    assert shell.facts("nan")["kept_until"]
    assert ", at $" in failed.stderr
    assert "resources left" not in failed.stderr, "what stays on purpose is not what was left behind"
    assert shell.stoker("exec", "nan", "--", "cat", "clue").stdout == "x is nan"
    assert len(cloud.running()) == 1
    (kept,) = json.loads(shell.stoker("cleanup", "--json").stdout)["used"]
    assert (kept["run_name"], bool(kept["kept_until"])) == ("nan", True)
    assert float(kept["usd_per_hour"]) > 0 and float(kept["spent_usd"]) > 0, "it costs, and is shown with that"
    shell.stoker("release", "nan")
    shell.wait_for(cloud.empty, "nothing to be left")
    assert shell.facts("nan")["kept_until"] is None


@pytest.mark.slow
def test_a_kept_machine_outlives_its_first_lease_and_its_agent(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, lease_s=12.0)
    shell.write("train.py", FAILS)
    shell.job("python3 train.py", on="azure", keep_failed="30m")
    shell.stoker("run", "--name", "long", code=3, patience_s=200)
    ended = time.monotonic()
    (machine,) = cloud.machines()
    group = machine["vm"].split("/resourceGroups/")[1].split("/")[0]
    vm = f"/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/node"
    agents = "pgrep -f 'agent-.*pyz run' | xargs kill -9"
    cloud.arm("POST", f"{vm}/runCommand", {"commandId": "RunShellScript", "script": [agents]}, "2024-07-01")
    around = shell.stoker("exec", "long", "--", "sh", "-c", "cat clue; echo aside >&2; exit 4", code=4)
    assert around.stdout.strip() == "x is nan"
    assert "does not answer: using its provider" in around.stderr
    assert "aside" in around.stderr
    shell.wait_for(lambda: time.monotonic() - ended > 15, "its first lease to be over", 40)
    assert [one["name"] for one in cloud.machines()] == [machine["name"]], "the lease goes on"
    refused = shell.refused("ssh", "long")
    assert refused["cause"] == Cause.NO_SSH and '"open_ssh": true' in refused["hint"]
    shell.stoker("release", "long")
    shell.wait_for(cloud.empty, "nothing to be left")


def public_address(cloud: Cloud) -> str:
    (machine,) = cloud.machines()
    place = machine["vm"].split("/providers/")[0].partition("/resourceGroups/")[2]
    found = cloud.arm("GET", f"/resourceGroups/{place}/providers/Microsoft.Network/publicIPAddresses/node")
    return str(found["properties"]["ipAddress"])


def greeting(address: str, source: str) -> bytes:
    """The first bytes that a client from there receives."""
    with socket.create_connection((address, 22), 10.0, (source, 0)) as connection:
        return connection.recv(4)


def _page(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            pass
        with urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bytes(answer.read())
    except OSError:
        return b""
