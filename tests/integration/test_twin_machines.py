"""Machines as real processes: booted from cloud-init data, killed, found again after the twin was killed, removed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import TwinFailed
from stoker.twin.arm.vms import extensions
from stoker.twin.machines import Machines, MachineSpec
from stoker.twin.machines.opening import open_machines, why_no_walls
from stoker.twin.state import Resource

KINDS = ["walled", "plain"]
SERVICE = """#cloud-config
bootcmd:
- echo boot >> /var/lib/boots
write_files:
- path: /opt/demo/serve.py
  content: |
    import os, time
    print("up", os.environ["GREETING"], os.getcwd(), flush=True)
    time.sleep(1000)
- path: /etc/systemd/system/demo.service
  content: |
    [Service]
    Environment=GREETING=hello
    WorkingDirectory=/opt/demo
    ExecStart=python3 serve.py
    Restart=always
    RestartSec=10ms
    [Install]
    WantedBy=multi-user.target
runcmd:
- echo run >> /var/lib/runs
- systemctl daemon-reload
- [systemctl, enable, --now, demo.service]
"""


class World:
    """A control plane that remembers what it was asked."""

    def __init__(self, folder: Path, walls: bool) -> None:
        self.folder = folder
        self.walls = walls
        self.acknowledged: list[tuple[str, Sequence[str]]] = []
        self.first_events_s = 0.0
        self.machines = self.open()

    def open(self) -> Machines:
        return open_machines(
            self.folder,
            token,
            acknowledged=lambda name, events: self.acknowledged.append((name, events)),
            first_events_s=lambda _: self.first_events_s,
            walls=self.walls,
            shown=(sys.prefix,),
            outward=True,
        )

    def create(self, name: str = "vm", data: str = "", address: str = "10.0.0.4", network: str = "default") -> None:
        self.machines.create(MachineSpec(name, data.encode(), address, {"name": name}, network))

    def run(self, script: str, name: str = "vm", timeout_s: float = 30.0) -> str:
        code, out, err = self.machines.run_command(name, script, timeout_s)
        assert code == 0, out + err
        return out

    def create_service(self) -> None:
        """A machine whose service has come up once."""
        self.create(data=SERVICE)
        self.run("cloud-init status --wait")
        self.until_started(1)

    def until_started(self, times: int) -> None:
        until(lambda: self.run("journalctl -u demo").count("up hello") >= times)

    def ask(self, target: str, name: str = "vm", options: str = "") -> Any:
        """The metadata service's response to a process inside."""
        script = f'curl -s -H Metadata:true {options} "$HOST/metadata/{target}"'
        host = "HOST=${AZURE_POD_IDENTITY_AUTHORITY_HOST:-http://169.254.169.254}"
        return json.loads(self.run(f"{host}\n{script}", name) or "null")

    def close(self) -> None:
        for name in self.machines.names():
            self.machines.destroy(name)
        self.machines.close()


def token(name: str, resource: str) -> dict[str, Any]:
    if name == "nobody":
        raise LookupError("Identity not found")
    return {
        "access_token": f"{name} for {resource}",
        "expires_in": "3600",
        "resource": resource,
        "token_type": "Bearer",
    }


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "machines", request.param == "walled")
    yield made
    made.close()


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "machines", True)
    yield made
    made.close()


def until(what: Callable[[], Any], within_s: float = 20.0) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def processes_about(text: str) -> list[int]:
    """Of this host, namespaces or not: those that name it in their command or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            about = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in about and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def serve(world: World, name: str) -> None:
    """Every client of the machine receives its name."""
    here = f"mkdir -p /srv/site; cd /srv/site; echo {name} > name"
    world.run(f"{here}; (python3 -m http.server 8000 >/dev/null 2>&1 &)", name)


def namespaces_of(pid: int) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("net", "mnt", "pid", "uts", "ipc")}


def namespaces_in_use() -> set[str]:
    """Of every process, and of every descriptor of this one."""
    found = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found |= namespaces_of(int(folder.name))
        except OSError:
            continue
    return found


def assert_nothing_is_left(world: World, namespaces: set[str]) -> None:
    assert [path.name for path in world.folder.iterdir()] == ["lock"]
    assert processes_about(str(world.folder)) == []
    assert str(world.folder) not in Path("/proc/self/mountinfo").read_text()
    # The kernel reuses the number of a deleted namespace, and a concurrent test may create one.
    assert until(lambda: not namespaces & namespaces_in_use())


def of_machine(world: World, name: str = "vm") -> set[str]:
    """Namespaces of the machine that are not the host's: none without walls."""
    folder = world.folder / name
    power = json.loads((folder / "power.json").read_bytes())
    return (namespaces_of(power["init"][0]) | namespaces_of(power["holder"][0])) - namespaces_of(os.getpid())


def test_cloud_init_writes_files_runs_commands_and_leaves_a_service_running(world: World) -> None:
    world.create(data=SERVICE)
    assert world.run("cloud-init status --wait") == "status: done\n"
    assert world.run("cat /var/lib/boots /var/lib/runs") == "boot\nrun\n"
    assert world.run("systemctl is-active demo").strip() == "active"
    said = until(lambda: world.run("journalctl -u demo"))
    assert said.startswith("up hello /") and said.endswith("/opt/demo\n")


def test_a_stopped_machine_boots_again_from_its_disk_and_starts_its_services(world: World) -> None:
    world.create_service()
    world.run("echo kept > /var/lib/file")
    world.machines.power_off("vm")
    assert not world.machines.alive("vm")
    world.machines.start("vm")
    assert world.machines.alive("vm")
    world.run("cloud-init status --wait")
    assert world.run("cat /var/lib/file /var/lib/boots /var/lib/runs") == "kept\nboot\nboot\nrun\n"
    world.until_started(2)
    assert world.run("systemctl is-enabled demo").strip() == "enabled"


def test_a_service_that_is_killed_is_started_again_and_one_that_is_stopped_is_not(world: World) -> None:
    world.create_service()
    pid = "systemctl show demo | grep MainPID | cut -d= -f2"
    world.run(f"kill -9 $({pid})")
    world.until_started(2)
    world.run("systemctl stop demo")
    assert world.machines.run_command("vm", "systemctl is-active demo", 10)[:2] == (3, "inactive\n")


def test_a_service_that_cannot_stay_up_has_failed_after_five_starts(world: World) -> None:
    world.create()
    unit = "[Service]\nExecStart=sh -c 'echo try; exit 1'\nRestart=on-failure\nRestartSec=1ms"
    world.run(f"printf '%s\\n' '{unit.replace(chr(39), chr(34))}' > /etc/systemd/system/bad.service")
    world.machines.run_command("vm", "systemctl start bad", 10)
    assert until(lambda: world.machines.run_command("vm", "systemctl is-failed bad", 10)[:2] == (0, "failed\n"))
    assert world.run("journalctl -u bad") == "try\n" * 5


def test_stopping_a_service_ends_its_children_wherever_they_went(world: World) -> None:
    world.create()
    long = f"sleep {random.randint(10_000, 99_999)}"  # of this test alone: plain machines see each other's processes
    unit = f'[Service]\nExecStart=sh -c "setsid {long} & {long}"'
    world.run(f"printf '%s\\n' '{unit}' > /etc/systemd/system/tree.service; systemctl start tree")
    count = f"ps axo args | grep -c '^{long}$' || true"
    assert until(lambda: world.run(count) == "2\n")
    world.run("systemctl stop tree")
    assert world.run(count) == "0\n"


def test_power_off_kills_what_has_left_its_session_and_its_parent(world: World) -> None:
    world.create()
    mark = f"sleep-{os.urandom(4).hex()}"
    world.run(f"(setsid sh -c 'trap \"\" TERM HUP; sleep 1000; : {mark}' &) &")
    assert until(lambda: processes_about(mark))
    world.machines.power_off("vm")
    assert processes_about(mark) == []


def test_a_driver_is_installed_in_the_machine_and_not_on_the_host(world: World) -> None:
    world.create()
    vm = Resource("/subscriptions/s/x/vm", {"properties": {"hardwareProfile": {"vmSize": "Standard_NC64as_T4_v3"}}}, 0)
    world.run(extensions.installing(vm))
    assert world.run("nvidia-smi -L").count("NVIDIA T4") == 4
    assert not Path("/usr/local/sbin/nvidia-smi").exists()


def test_a_command_gives_its_exit_code_and_output_and_does_not_wait_for_what_it_leaves_running(world: World) -> None:
    world.create()
    script = "echo out; echo err >&2; sleep 1000 & exit 3"
    assert world.machines.run_command("vm", script, 30) == (3, "out\n", "err\n")
    assert world.machines.run_command("vm", "#!/usr/bin/env python3\nprint(1 + 1)", 30) == (0, "2\n", "")


def test_a_command_that_takes_too_long_is_killed_with_its_children(world: World) -> None:
    world.create()
    mark = f"late-{os.urandom(4).hex()}"
    code, out, _ = world.machines.run_command("vm", f"echo begun; sh -c 'sleep 1000; : {mark}'; echo end", 0.5)
    assert (code, out) == (124, "begun\n")
    assert processes_about(mark) == []


def test_a_machine_that_shuts_itself_down_is_off_and_can_be_started(world: World) -> None:
    world.create_service()
    world.machines.run_command("vm", "poweroff", 10)
    assert until(lambda: not world.machines.alive("vm"))
    with pytest.raises(TwinFailed, match="machine vm is off"):
        world.machines.run_command("vm", "true", 10)
    world.machines.start("vm")
    world.until_started(2)


def test_a_machine_that_reboots_itself_stays_on(world: World) -> None:
    world.create_service()
    world.machines.run_command("vm", "reboot", 10)
    assert until(lambda: world.run("cat /var/lib/boots") == "boot\nboot\n")
    world.until_started(2)
    assert world.machines.alive("vm")


def test_a_bad_entry_of_cloud_init_is_an_error_with_a_message_and_the_rest_is_done(world: World) -> None:
    files = "write_files: [{path: /opt/demo/a, content: x}, {path: /opt/demo/a/b, content: x}]"
    world.create(data=f"#cloud-config\n{files}\nruncmd: [touch /var/lib/done, 'exit 7']\n")
    code, out, err = world.machines.run_command("vm", "cloud-init status --wait; test -f /var/lib/done", 30)
    assert (code, out) == (0, "status: error\n")
    assert "write_files /opt/demo/a/b: " in err and "runcmd: exit code 7" in err


def test_metadata_tells_a_machine_about_itself(world: World) -> None:
    world.create("group/one", address="10.3.0.4")
    told = world.ask("instance?api-version=2021-02-01", "group/one")
    assert told["compute"] == {"name": "group/one"}
    assert told["network"]["interface"][0]["ipv4"]["ipAddress"][0]["privateIpAddress"] == "10.3.0.4"


def test_scheduled_events_are_seen_inside_and_acknowledged_outside(world: World) -> None:
    world.create()
    target = "scheduledevents?api-version=2020-07-01"
    assert world.ask(target) == {"DocumentIncarnation": 1, "Events": []}
    document = {"DocumentIncarnation": 2, "Events": [{"EventId": "E-1", "EventType": "Preempt"}]}
    world.machines.set_events("vm", document)
    assert world.ask(target) == document
    body = json.dumps({"StartRequests": [{"EventId": "E-1"}]})
    assert world.ask(target, options=f"-d '{body}'") is None
    assert world.acknowledged == [("vm", ["E-1"])]


def test_only_the_first_answer_about_events_is_slow_and_power_off_ends_the_wait(world: World) -> None:
    world.first_events_s = 0.5
    world.create()
    target = "scheduledevents?api-version=2020-07-01"
    begun = time.monotonic()
    assert world.ask(target)["Events"] == []
    assert time.monotonic() - begun >= 0.5
    world.first_events_s = 1000.0
    assert world.ask(target)["Events"] == []
    world.create("other", address="10.0.0.5")
    slow = threading.Thread(target=lambda: world.machines.run_command("other", "curl $HOST", 60), daemon=True)
    slow.start()
    world.machines.destroy("other")
    slow.join(20)
    assert not slow.is_alive()


def test_the_official_identity_library_gets_a_token_inside_a_machine(world: World) -> None:
    world.create()
    script = (
        f"#!{sys.executable}\n"
        "from azure.identity import ManagedIdentityCredential\n"
        "print(ManagedIdentityCredential().get_token('https://management.azure.com/.default').token)\n"
    )
    assert world.run(script, timeout_s=60) == "vm for https://management.azure.com\n"


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"x" * 3_000_000 + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_an_exposed_port_has_the_same_url_inside_and_outside_before_and_after_a_boot(world: World, port: int) -> None:
    world.create()
    world.machines.expose(port)
    fetch = f"curl -s http://127.0.0.1:{port}/a | tail -c 3; echo; curl -s http://localhost:{port}/b | wc -c"
    assert world.run(fetch).split() == ["x/a", "3000002"]
    world.machines.power_off("vm")
    world.machines.start("vm")
    assert world.run(fetch).split() == ["x/a", "3000002"]


def test_what_is_not_exposed_cannot_be_reached_behind_walls(walled: World, port: int) -> None:
    walled.create()
    assert walled.machines.run_command("vm", f"curl -s --max-time 5 http://127.0.0.1:{port}/", 10)[0] == 7


def test_a_machine_without_a_way_out_reaches_nothing_that_is_exposed(walled: World, port: int) -> None:
    walled.machines.expose(port)
    walled.machines.create(MachineSpec("shut", b"#!/bin/sh\n", "10.0.0.9", {"name": "shut"}, outbound=False))
    fetch = f"curl -s --max-time 5 http://127.0.0.1:{port}/a"
    assert walled.machines.run_command("shut", fetch, 10)[0] == 7
    walled.machines.power_off("shut")
    walled.machines.start("shut")
    assert walled.machines.run_command("shut", fetch, 10)[0] == 7, "nor after a boot"


def test_the_way_out_does_not_lead_to_the_host_itself(walled: World, port: int) -> None:
    walled.create()
    assert walled.run("echo $https_proxy") == "http://127.0.0.1:3128\n"
    through = f"curl -s -o /dev/null -w '%{{http_code}}' --noproxy '' http://127.0.0.1:{port}/"
    assert walled.run(through) == "403"
    assert walled.run("curl -s --proxytunnel --noproxy '' https://169.254.169.254/ ; echo $?") == "56\n"


def test_machines_of_a_network_reach_each_other_by_address_and_others_do_not(walled: World) -> None:
    walled.create("one", address="10.0.0.4")
    walled.create("two", address="10.0.0.5")
    walled.create("far", address="10.0.0.5", network="other")
    serve(walled, "two")
    serve(walled, "far")
    fetch = "curl -s --retry 20 --retry-delay 1 --retry-all-errors --max-time 20 http://10.0.0.5:8000/name"
    assert walled.run(fetch, "one") == "two\n"
    assert walled.run("hostname; cat /etc/hostname; getent hosts $(hostname)", "one").split() == [
        "one", "one", "10.0.0.4", "one",
    ]  # fmt: skip


def test_users_are_made_with_their_keys(walled: World) -> None:
    users = "users: [{name: ada, sudo: true, ssh_authorized_keys: [ssh-ed25519 AAAA ada]}]"
    walled.create(data=f"#cloud-config\n{users}\nssh_authorized_keys: [ssh-ed25519 BBBB all]\n")
    assert walled.run("cloud-init status --wait") == "status: done\n"
    assert walled.run("cat /home/ada/.ssh/authorized_keys") == "ssh-ed25519 AAAA ada\nssh-ed25519 BBBB all\n"
    assert walled.run("stat -c '%U %a' /home/ada/.ssh /home/ada/.ssh/authorized_keys") == "ada 700\nada 600\n"
    walled.run("su ada -c 'test $(whoami) = ada'")


def test_the_hosts_homes_and_work_folders_are_not_in_a_machine(walled: World, tmp_path: Path) -> None:
    walled.create()
    shown = Path(sys.prefix).parts[2]  # this Python is visible, wherever it is
    assert set(walled.run("ls -A /home /tmp /mnt /srv | grep -v :").split()) <= {shown}
    for hidden in (tmp_path, Path(__file__), Path.home() / ".cache", Path.home() / ".stoker"):
        assert walled.machines.run_command("vm", f"test -e {hidden}", 10)[0] == 1
    walled.run("echo 'changed' > /etc/issue; echo more >> /etc/profile")
    assert Path("/etc/issue").read_text() != "changed\n"
    assert not Path("/etc/profile").read_text().endswith("more\n")
    walled.machines.power_off("vm")
    walled.machines.start("vm")
    assert walled.run("cat /etc/issue") == "changed\n"


def test_destroy_leaves_no_process_mount_namespace_wire_or_folder(world: World) -> None:
    world.create("vm", SERVICE)
    world.create("other", SERVICE, address="10.0.0.5")
    namespaces = of_machine(world) | of_machine(world, "other")
    assert (len(namespaces) > 8) == world.walls
    world.machines.destroy("vm")
    world.machines.destroy("vm")
    world.machines.power_off("other")
    world.machines.start("other")
    namespaces |= of_machine(world, "other")
    world.machines.destroy("other")
    assert_nothing_is_left(world, namespaces)


TWIN = """
import sys, time
from pathlib import Path
from stoker.twin.machines import MachineSpec
from stoker.twin.machines.opening import open_machines
machines = open_machines(Path(sys.argv[1]), lambda name, resource: {}, walls=sys.argv[2] == "True")
print("open", flush=True)
machines.create(MachineSpec("vm", sys.argv[3].encode(), "10.0.0.4", {"name": "vm"}))
machines.set_events("vm", {"DocumentIncarnation": 7, "Events": []})
print("made", flush=True)
time.sleep(1000)
"""


def killed_twin(world: World, word: str, after_s: float = 0.0) -> None:
    """Another process has the machines, and is killed."""
    world.machines.close()
    words = [sys.executable, "-c", TWIN, str(world.folder), str(world.walls), SERVICE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as twin:
        said = twin.stdout
        assert said
        assert until(lambda: said.readline() == f"{word}\n")
        time.sleep(after_s)
        twin.send_signal(signal.SIGKILL)
    world.machines = world.open()


def test_machines_outlive_a_killed_twin_and_the_next_one_has_them(world: World) -> None:
    killed_twin(world, "made")
    assert world.machines.names() == ["vm"] and world.machines.alive("vm")
    world.run("cloud-init status --wait")
    assert world.run("cat /var/lib/boots") == "boot\n"
    world.until_started(1)
    assert world.ask("scheduledevents?api-version=2020-07-01")["DocumentIncarnation"] == 7
    namespaces = of_machine(world)
    world.machines.power_off("vm")
    world.machines.start("vm")
    world.until_started(2)
    namespaces |= of_machine(world)
    world.machines.destroy("vm")
    assert_nothing_is_left(world, namespaces)


def boots(world: World, name: str) -> bool:
    """It may just be shutting down with its twin; then it is started again."""
    world.machines.start(name)
    try:
        return "run\n" in world.machines.run_command(name, "cloud-init status --wait >&2; cat /var/lib/runs", 5)[1]
    except OSError:
        return False


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.12])
def test_a_twin_killed_while_it_makes_a_machine_leaves_a_whole_one_or_nothing_that_runs(
    world: World, after_s: float
) -> None:
    killed_twin(world, "open", after_s)
    for name in world.machines.names():
        assert until(partial(boots, world, name), 40)
        world.machines.destroy(name)
    until(lambda: not processes_about(str(world.folder)))
    assert_nothing_is_left(world, set())


def test_a_twin_that_ends_lets_go_of_its_machines_and_the_next_in_the_same_process_has_them(world: World) -> None:
    world.create(data=SERVICE)
    namespaces = of_machine(world)
    world.machines.close()
    assert not {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()} & namespaces
    world.machines = world.open()
    world.run("cloud-init status --wait")
    world.machines.destroy("vm")
    assert_nothing_is_left(world, namespaces)


def test_two_twins_cannot_have_the_same_machines(world: World) -> None:
    with pytest.raises(TwinFailed, match="a running twin uses the machines"):
        world.open()


def test_walls_are_taken_where_they_are_allowed_and_refused_with_a_message_where_not(tmp_path: Path) -> None:
    assert why_no_walls(tmp_path) == ""
    script = (
        "import os\nfrom pathlib import Path\nfrom stoker.twin.machines.opening import why_no_walls\n"
        "os.seteuid(65534)\nprint(why_no_walls(Path('/')))"
    )
    words = [sys.executable, "-c", script]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "root is required\n"
