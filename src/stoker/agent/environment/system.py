"""What a node is besides its packages: whatever may explain that the same code gives another result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LONGEST = 200


def system_of(processes: Path = Path("/proc")) -> dict[str, str]:
    """Read from files: no program is started, since every run asks."""
    found = dict(_found(processes))
    return {name: " ".join(text.split())[:_LONGEST] for name, text in found.items() if text}


def _found(processes: Path) -> Iterator[tuple[str, str]]:
    system = os.uname()
    yield "kernel", f"{system.sysname} {system.release}"
    yield "machine", system.machine
    yield "cpu", _after(_text(processes / "cpuinfo"), "model name")
    yield "cores", str(os.cpu_count() or "")
    yield "libc", _libc()
    yield "os", _after(_text(Path("/etc/os-release")), "PRETTY_NAME", "=").strip('"')
    driver = processes / "driver" / "nvidia"
    yield "driver", _driver(_text(driver / "version"))
    if driver.exists():
        yield "gpus", ", ".join(sorted(_gpus(driver / "gpus")))
        yield "cuda", _cuda()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _after(text: str, name: str, separator: str = ":") -> str:
    found = re.search(rf"^{name}\s*{separator}\s*(.*)$", text, re.M)
    return found[1] if found else ""


def _libc() -> str:
    with suppress(AttributeError, ValueError, OSError):  # of another libc
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""


def _driver(text: str) -> str:
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found[1] if found else ""


def _gpus(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for one in folder.iterdir():
            if model := _after(_text(one / "information"), "Model"):
                yield model


def _cuda() -> str:
    """The newest version that the driver supports."""
    import ctypes  # here, because most nodes have no GPU

    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
