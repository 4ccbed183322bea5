"""A process that can be recognised later: its number and its birth, for numbers are used again."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    born: str

    @classmethod
    def now(cls, pid: int) -> Process:
        return cls(pid, birth(pid))

    @property
    def alive(self) -> bool:
        return bool(self.born) and birth(self.pid) == self.born

    def wait(self, within_s: float = 10.0) -> bool:
        until = time.monotonic() + within_s
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True


def birth(pid: int) -> str:
    """Empty for one that is not there, or is dead and only not yet reaped."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    words = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, born = subprocess.run(words, capture_output=True, text=True).stdout.strip().partition(" ")
    return "" if state.startswith("Z") else born.strip()
