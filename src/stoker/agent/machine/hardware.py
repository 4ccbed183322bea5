"""How many GPUs this node has for a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stoker.agent.environment.python import which

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
    counts = [_count(Path("/proc/vmstat"))]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                counts.append(_count(Path(f"/sys/fs/cgroup{path}/memory.events")))
            elif "memory" in controllers.split(","):
                counts.append(_count(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")))
    return sum(counts)


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0
