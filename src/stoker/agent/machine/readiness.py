"""Whether a new machine is ready for a script: checked until it is, by tests rather than by its own claims. How many
GPUs this node has for a run."""

from __future__ import annotations

import fcntl
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker import containers
from stoker.agent.attempt.endings import spell
from stoker.agent.environment.python import which
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import NeedsRestart, Stopping
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.run.report import Outcome

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
NO_DRIVER = "the GPU driver does not answer"
ASK_S = 20.0  # for a driver or a runtime to answer
REBOOT_MARK = "it requires a restart"
# A driver installation is one of these most of the time: package managers, and builds of kernel modules.
_INSTALLERS = frozenset(
    [
        "apt",
        "apt-get",
        "dpkg",
        "dnf",
        "yum",
        "rpm",
        "dkms",
        "make",
        "cc1",
        "ld",
        "modprobe",
        "depmod",
        "update-initramf",
    ]
)


@dataclass(frozen=True, slots=True)
class Check:
    """`ask` returns why it is not ready; empty where it is."""

    what: str
    ask: Callable[[], str]


def await_ready(job: Job, machine: NodeMachine, stopping: Stopping, tell: Callable[[str, str], None]) -> None:
    """Returns when everything is ready. Otherwise `stopping` gets the reason, and raises: a machine that does not get
    ready is released, and one that only needs a restart is restarted."""
    started, pause_s, told = time.monotonic(), FIRST_PAUSE_S, ""
    busy_at, wanted = started, checks(job, machine)
    while not_yet := [(check.what, why) for check in wanted if (why := check.ask())]:
        stopping.check()
        reason = "; ".join(why for _, why in not_yet)
        if [why for _, why in not_yet] == [REBOOT_MARK]:
            stopping.stays = True
            stopping.ask(
                Outcome.EVICTED, "its machine required a restart before the script could start", Cause.MACHINE_RESTARTED
            )
            raise NeedsRestart
        busy_at = time.monotonic() if installing(machine) else busy_at
        if time.monotonic() - started >= machine.ready_s:
            limit = spell(machine.ready_s)
            stopping.ask(Outcome.NOT_READY, f"its machine was not ready after {limit}: {reason}", Cause.NOT_READY)
        elif NO_DRIVER in reason and time.monotonic() - busy_at >= machine.quiet_s:
            quiet = spell(machine.quiet_s)
            why = f"{reason}, and nothing has been installing one for {quiet}: the image has no driver for this GPU"
            stopping.ask(Outcome.NOT_READY, f"its machine was not ready: {why}", Cause.NO_DRIVER)
        elif reason != told:
            tell("not-ready", f"the machine is not ready yet: {reason}")
            told = reason
        stopping.check()
        stopping.wait(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    waited_s = time.monotonic() - started
    tell("ready", f"the machine was ready after {waited_s:.1f} s: {', '.join(check.what for check in wanted)}")


def installing(machine: NodeMachine) -> bool:
    """An installation may be about to provide what is missing."""
    if machine.package_lock and _packages(Path(machine.package_lock)):
        return True
    for name in machine.processes.glob("[0-9]*/comm"):
        with suppress(OSError):
            comm = name.read_text(encoding="utf-8", errors="replace").strip()
            if comm in _INSTALLERS or comm.startswith("nvidia-"):
                return True
    return False


def restart(machine: NodeMachine) -> None:
    """As root, which the agent of a cloud VM is."""
    if tool := which("systemctl", machine.variables.get("PATH", "")):
        subprocess.run([tool, "reboot"], check=False, timeout=ASK_S)


def checks(job: Job, machine: NodeMachine) -> list[Check]:
    """The restart comes last: it may be pending because of drivers and packages."""
    wanted = job.gpus or (1 if job.gpu else 0)
    found: list[Check] = []
    if machine.package_lock:
        found.append(Check("no packages are being installed", partial(_packages, Path(machine.package_lock))))
    if wanted:
        found.append(Check(f"the driver answers for {_count(wanted)}", partial(_driver, wanted, machine.variables)))
    if job.environment.contained:
        found.append(Check("the container engine answers", partial(_containers, wanted, machine)))
    if machine.reboot_mark:
        found.append(Check("no restart is pending", partial(_restart, Path(machine.reboot_mark))))
    return found


def _packages(lock: Path) -> str:
    with suppress(FileNotFoundError, PermissionError), lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "packages are being installed"
    return ""


def _driver(wanted: int, variables: Mapping[str, str]) -> str:
    answering = listed_gpus(variables)
    if answering >= wanted:
        return ""
    return f"the driver answers for {answering} of {_count(wanted)}" if answering else NO_DRIVER


def _containers(wanted: int, machine: NodeMachine) -> str:
    seen = containers.survey("", machine.variables)
    if not seen or seen[0].trouble:
        _install_engine(machine)
        return containers.troubles(seen)[0]
    if wanted and not seen[0].gpus:
        _install_engine(machine)
        return "the container engine does not support GPUs"
    return ""


def _install_engine(machine: NodeMachine) -> None:
    """In the background. While that runs, another start changes nothing; one that has failed begins again."""
    if machine.engine_unit and (tool := which("systemctl", machine.variables.get("PATH", ""))):
        subprocess.run([tool, "start", "--no-block", machine.engine_unit], capture_output=True, timeout=ASK_S)


def _restart(mark: Path) -> str:
    return REBOOT_MARK if mark.exists() else ""


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


AMD = Path("/sys/class/kfd/kfd/topology/nodes")  # AMD's kernel driver lists compute devices here, CPUs too


def count_gpus(environ: Mapping[str, str]) -> int:
    """The devices in CUDA_VISIBLE_DEVICES, or all that the driver lists; 0 without a driver."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return sum(1 for name in visible.split(",") if name.strip() not in ("", "-1"))
    return listed_gpus(environ)


def listed_gpus(environ: Mapping[str, str], amd: Path = AMD) -> int:
    """All that the driver lists; 0 where there is none, or it does not answer."""
    tool = which("nvidia-smi", environ.get("PATH", ""))
    if not tool:
        return sum(_computes(node) for node in amd.glob("*/properties"))
    import subprocess  # here, because it is slow to import and few runs use GPUs

    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(1 for line in told.splitlines() if line.startswith("GPU "))


def _computes(properties: Path) -> bool:
    with suppress(OSError, ValueError):
        lines = (line.split() for line in properties.read_text(encoding="ascii").splitlines())
        return any(line[:1] == ["simd_count"] and int(line[1]) > 0 for line in lines if len(line) == 2)
    return False


# Whether the kernel killed a process for lack of memory.


def memory_kills() -> int:
    """How many processes were killed for lack of memory, on this machine or in this container; 0 if unknown."""
    counts = [_kill_count(Path("/proc/vmstat"))]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                counts.append(_kill_count(Path(f"/sys/fs/cgroup{path}/memory.events")))
            elif "memory" in controllers.split(","):
                counts.append(_kill_count(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")))
    return sum(counts)


def _kill_count(file: Path) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0
