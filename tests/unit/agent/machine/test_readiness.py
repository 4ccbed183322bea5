"""A machine is ready when what the script needs answers, and not before."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.machine import readiness
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.machine.readiness import await_ready, checks
from stoker.agent.notice.stopping import Stopped, Stopping
from stoker.model.job.job import Environment, Job
from stoker.model.run.report import Outcome


@pytest.fixture
def machine(tmp_path: Path) -> NodeMachine:
    tools = tmp_path / "bin"
    tools.mkdir()
    return NodeMachine(
        NodeFolder(tmp_path / "node"),
        tmp_path / "environments",
        "",
        tmp_path,
        {"PATH": str(tools)},
        ready_s=30.0,
        reboot_mark=str(tmp_path / "reboot-required"),
        package_lock=str(tmp_path / "lock-frontend"),
    )


def tool(machine: NodeMachine, name: str, text: str) -> None:
    path = Path(machine.variables["PATH"], name)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def ready(machine: NodeMachine, job: Job, stopping: Stopping | None = None) -> list[str]:
    told: list[str] = []
    await_ready(job, machine, stopping or Stopping(), lambda kind, text: told.append(f"{kind}: {text}"))
    return told


PLAIN = Job(name="job", run="true")
ONE_GPU = Job(name="job", run="true", gpus=1)


def test_a_machine_with_nothing_to_wait_for_is_ready_at_once(machine: NodeMachine) -> None:
    (told,) = ready(machine, PLAIN)
    assert told.startswith("ready: the machine was ready after 0.")
    assert told.endswith("no packages are being installed, no restart is pending")


def test_what_is_asked_of_a_machine_follows_from_the_job(machine: NodeMachine) -> None:
    whats = [check.what for check in checks(Job(name="j", run="true", gpus=4), machine)]
    assert "the driver answers for 4 GPUs" in whats
    in_image = Job(name="j", run="true", environment=Environment(image="x"))
    assert "the container engine answers" in [check.what for check in checks(in_image, machine)]


@pytest.fixture
def locked(machine: NodeMachine) -> Iterator[subprocess.Popen[str]]:
    """Held by another process, as a package manager does."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    words = [sys.executable, "-c", code, machine.package_lock]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline()
        yield holder
        holder.kill()


def test_the_end_of_an_installation_is_waited_for(machine: NodeMachine, locked: subprocess.Popen[str]) -> None:
    threading.Timer(0.3, locked.kill).start()
    told = ready(machine, PLAIN)
    assert told[0] == "not-ready: the machine is not ready yet: packages are being installed"
    assert told[1].startswith("ready: ")


def test_drivers_that_come_later_are_waited_for(machine: NodeMachine) -> None:
    late = threading.Timer(0.3, tool, (machine, "nvidia-smi", "echo 'GPU 0: T4'"))
    late.start()
    told = ready(machine, ONE_GPU)
    assert told[0] == "not-ready: the machine is not ready yet: the GPU driver does not answer"
    assert "the driver answers for 1 GPU" in told[1]


def test_a_driver_that_has_too_few_is_not_ready_and_the_machine_is_released(machine: NodeMachine) -> None:
    tool(machine, "nvidia-smi", "echo 'GPU 0: T4'")
    stopping = Stopping()
    impatient = replace(machine, ready_s=0.5)
    with pytest.raises(Stopped):
        ready(impatient, Job(name="j", run="true", gpus=2), stopping)
    assert stopping.outcome is Outcome.NOT_READY
    assert stopping.message == "its machine was not ready after 0.5s: the driver answers for 1 of 2 GPUs"
    assert not stopping.stays


def test_amds_gpus_are_counted_as_their_kernel_driver_lists_them(tmp_path: Path) -> None:
    """Processors are listed among them, with no compute units."""
    for number, units in enumerate([0, 0, 304, 304]):
        node = tmp_path / str(number)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\nmem_banks_count 1\n")
    assert readiness.listed_gpus({"PATH": ""}, amd=tmp_path) == 2
    assert readiness.listed_gpus({"PATH": ""}, amd=tmp_path / "none") == 0


def without_driver(machine: NodeMachine, **more: Any) -> str:
    stopping = Stopping()
    with pytest.raises(Stopped):
        ready(replace(machine, **more), ONE_GPU, stopping)
    assert stopping.outcome is Outcome.NOT_READY
    return stopping.message


def test_a_driver_that_nobody_is_installing_is_not_waited_for(machine: NodeMachine, tmp_path: Path) -> None:
    quiet = replace(machine, processes=tmp_path / "proc")
    said = without_driver(quiet, ready_s=1800.0, quiet_s=0.3)
    assert said.startswith("its machine was not ready: the GPU driver does not answer, and nothing has been inst")
    assert said.endswith("the image has no driver for this GPU")


def test_a_driver_that_is_being_installed_is_waited_for(machine: NodeMachine, tmp_path: Path) -> None:
    building = tmp_path / "proc" / "17"
    building.mkdir(parents=True)
    (building / "comm").write_text("dkms\n")
    said = without_driver(replace(machine, processes=tmp_path / "proc"), ready_s=0.6, quiet_s=0.1)
    assert said == "its machine was not ready after 0.6s: the GPU driver does not answer"


def test_a_missing_driver_is_reported_in_minutes(machine: NodeMachine) -> None:
    assert machine.quiet_s <= 300


def test_a_container_engine_has_to_know_the_gpus(machine: NodeMachine) -> None:
    said = """echo '{"ServerVersion": "25", "Architecture": "x86_64", "Runtimes": {"%s": {}}}'"""
    tool(machine, "nvidia-smi", "echo 'GPU 0: T4'")
    tool(machine, "docker", said % "runc")
    job = Job(name="j", run="true", gpus=1, environment=Environment(image="x"))
    late = threading.Timer(0.3, tool, (machine, "docker", said % "nvidia"))
    late.start()
    told = ready(machine, job)
    assert told[0] == "not-ready: the machine is not ready yet: the container engine does not support GPUs"


def test_a_machine_that_only_needs_a_restart_is_restarted(machine: NodeMachine) -> None:
    Path(machine.reboot_mark).touch()
    stopping = Stopping()
    with pytest.raises(Stopped):
        ready(machine, PLAIN, stopping)
    assert (stopping.outcome, stopping.stays) == (Outcome.EVICTED, True)


def test_a_restart_waits_until_what_it_is_for_is_there(machine: NodeMachine) -> None:
    Path(machine.reboot_mark).touch()
    stopping, began = Stopping(), time.monotonic()
    threading.Timer(0.5, tool, (machine, "nvidia-smi", "echo 'GPU 0: T4'")).start()
    with pytest.raises(Stopped):
        ready(machine, ONE_GPU, stopping)
    assert stopping.stays
    assert time.monotonic() - began >= 0.5


def test_whoever_cancels_need_not_wait(machine: NodeMachine) -> None:
    stopping = Stopping()
    threading.Timer(0.2, stopping.ask, (Outcome.CANCELLED, "cancelled")).start()
    with pytest.raises(Stopped):
        ready(machine, ONE_GPU, stopping)
    assert stopping.message == "cancelled"


def test_a_missing_container_engine_is_installed_by_the_service_of_the_machine(machine: NodeMachine) -> None:
    machine = replace(machine, engine_unit="engine.service")
    installed = Path(machine.variables["PATH"], "docker")
    said = '{"ServerVersion": "20.10", "Architecture": "x86_64"}'
    program = f"#!/bin/sh\\necho '{said}'"
    tool(
        machine,
        "systemctl",
        f"""echo "$@" >{machine.folder.root}.asked
printf '%b' "{program.replace('"', chr(92) + '"')}" >{installed}; /bin/chmod 755 {installed}""",
    )
    told = ready(machine, Job(name="job", run="true", environment=Environment(image="x:1")))
    assert Path(f"{machine.folder.root}.asked").read_text().split() == ["start", "--no-block", "engine.service"]
    assert [one.partition(":")[0] for one in told] == ["not-ready", "ready"]
