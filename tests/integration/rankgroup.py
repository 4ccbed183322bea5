"""Ranks of one training, with the agent's environment, killed together, and what they have written.

They are forked from a server that has imported PyTorch: four imports at a time would take longer than everything else.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import runpy
import signal
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_IMPORTS = ["torch", "torch._dynamo", "torch.distributed.fsdp"]


def ended(world: int) -> list[int | None]:
    return [0] * world


def killed(world: int) -> list[int | None]:
    return [-signal.SIGKILL] * world


def start(
    script: Path,
    folder: Path,
    world: int,
    *,
    env: Mapping[str, str],
    kill_at: int | None = None,
    notice_at: int | None = None,
) -> list[int | None]:
    """Exit codes of all ranks; they are killed together once the last has logged so many lines and a checkpoint is
    committed: on a busy machine the writing may take longer than many small steps."""
    folder.mkdir(exist_ok=True)
    settings = {**_surroundings(folder, world), **env}
    ranks = [
        _forking().Process(target=_be_rank, args=(script, folder, {**settings, "RANK": str(r), "LOCAL_RANK": str(r)}))
        for r in range(world)
    ]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + 120
    try:
        while any(rank.exitcode is None for rank in ranks):
            assert time.monotonic() < deadline, said(folder)
            lines = len(steps(folder, world - 1))
            if notice_at is not None and lines >= notice_at and not (folder / "notice").exists():
                warning = {"at": time.time(), "deadline": time.time() + 30, "kind": "evict"}
                (folder / "notice").write_text(json.dumps(warning))
            warned = notice_at is None or (folder / "notice.saved").exists()
            failed = any(rank.exitcode not in (None, 0) for rank in ranks)
            reached = kill_at is not None and lines >= kill_at and warned
            if failed or (reached and any(folder.glob("checkpoints/**/manifest.json"))):
                for rank in ranks:
                    rank.kill()
            time.sleep(0.005)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    (folder / "notice").unlink(missing_ok=True)
    return [rank.exitcode for rank in ranks]


def also_import(*names: str) -> None:
    """In the server. It is started once in a process; ranks of a test that comes later import these themselves."""
    _IMPORTS.extend(name for name in names if name not in _IMPORTS)


@cache
def _forking() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    return context


def _be_rank(script: Path, folder: Path, env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    out = os.open(folder / "out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    runpy.run_path(str(script), run_name="__main__")
    atexit._run_exitfuncs()


def _surroundings(folder: Path, world: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return {
        **kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "STOKER_CHECKPOINTS": str(folder / "checkpoints"),
        "STOKER_NOTICE": str(folder / "notice"), "PYTHONWARNINGS": "ignore",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def said(folder: Path) -> str:
    return (folder / "out.log").read_text(encoding="utf-8")


def steps(folder: Path, rank: int) -> list[tuple[str, str]]:
    """What was logged in each step, with the name of the step, in the order of the log."""
    path = folder / f"steps-{rank}.log"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(line.split()[0], line.split()[1]) for line in lines if len(line.split()) == 2]


def finals(folder: Path, world: int) -> list[object]:
    return [json.loads((folder / f"final-{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]


def assert_same(disturbed: Path, undisturbed: Path, world: int) -> None:
    """Every step, also a repeated one, had exactly the loss that it has in the undisturbed training."""
    for rank in range(world):
        heard: dict[str, set[str]] = {}
        for step, loss in steps(disturbed, rank):
            heard.setdefault(step, set()).add(loss)
        assert heard == {step: {loss} for step, loss in steps(undisturbed, rank)}
    assert finals(disturbed, world) == finals(undisturbed, world)
