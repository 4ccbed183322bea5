"""`init` and `plan` stay quick in a repository of thousands of files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from shell import Shell

FILES = 5_000
MOST_CPU_S = 0.8  # on idle cores it takes about a third of it; other load increases CPU time, too


@pytest.mark.heavy
def test_init_and_plan_take_a_moment_in_a_repository_of_5000_files(shell: Shell, tmp_path: Path) -> None:
    # As installed, with bytecode: without, every command compiles its modules anew.
    shell.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    for number in range(FILES):
        place = shell.folder / f"package{number % 60}" / f"part{number % 7}"
        place.mkdir(parents=True, exist_ok=True)
        name, line = (
            (f"m{number}.py", "def f(x):\n    return x + 1\n") if number % 2 else (f"d{number}.json", "[1, 2]\n")
        )
        (place / name).write_text(f"# {number}\n" + line * (number % 50))
    shell.write("train.py", 'import torch\ntorch.save({}, "ckpt/last.pt")\n')
    assert min(_cpu_s(shell, "init", "--force") for _ in range(3)) < MOST_CPU_S
    assert min(_cpu_s(shell, "plan") for _ in range(3)) < MOST_CPU_S


def _cpu_s(shell: Shell, *words: str) -> float:
    """Of the command itself, as its parent measures it; the server is detached by then."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell.stoker(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
