"""Log lines from a script to whoever follows it: how many megabytes a second, and how late each line is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, on_pipe, on_terminal, workplace
from benchmarks.measure import Goal, Plan, Result, percentile
from benchmarks.subject import Stoker, installed

LINE_BYTES = 100
LINES_PER_BLOCK = 1000
# `line <block> <number> <filling>`: a follower that drops, repeats or swaps one changes the hash. Only the block's
# number is written anew, since formatting every line would make the script itself the bottleneck.
FLOOD = """\
import sys

filling = b"x" * {filling}
block = b"".join(b"line ######## %04d %s\\n" % (number, filling) for number in range({block}))
for number in range({blocks}):
    sys.stdout.buffer.write(block.replace(b"########", b"%08d" % number))
"""
TICKS = """\
import time

begun = time.time()
for number in range({lines}):
    time.sleep(max(0.0, begun + number / {per_second} - time.time()))
    print(f"tick {{time.time():.6f}}", flush=True)
"""
# Peers add a prefix, a time or a colour to a line.
LINE = re.compile(rb"line \d{8} \d{4} x+")
TICK = re.compile(rb"tick (\d+\.\d+)")
PER_SECOND = 100
BARE, STOKER = "bare python", "stoker"

# The peers that show lines while the script runs. MLflow is left out: its script writes to the terminal itself.
STREAMING = (peers.TORCHX, peers.METAFLOW, peers.RAY)


@dataclass(frozen=True, slots=True)
class Flood:
    """What came through of a flood. `digest` is that of the lines alone, `exact` that of every byte on stdout."""

    megabytes_per_s: float
    digest: str
    exact: str


def run(plan: Plan) -> Result:
    result = Result("logs", versions={"stoker": installed()})
    if not plan.alone:
        result.versions.update({peer.name: peers.install(peer) for peer in STREAMING})
    _flood(plan, result, plan.size(200, 20), plan.size(20, 2))
    _latency(plan, result, plan.size(10, 3))
    return result


def _flood(plan: Plan, result: Result, megabytes: int, peer_megabytes: int) -> None:
    with workplace() as place, ExitStack() as services:
        big = {command.name: _flooded(command) for command in _own_commands(place, services, _flood_script(megabytes))}
        floods = plan.interleave(big)
        for name, samples in floods.items():
            goal = Goal(at_least=40.0) if name == STOKER else None
            speeds = [sample.megabytes_per_s for sample in samples]
            result.add(f"{name}: {megabytes} MB of lines", "MB/s", speeds, goal)
        whole = [float(one.exact == bare.exact) for one, bare in zip(floods[STOKER], floods[BARE], strict=True)]
        result.add(f"{STOKER}: {megabytes} MB arrived complete, in order, once", "of 1", whole, Goal(at_least=1.0))
    if plan.alone:
        return
    with workplace() as place, ExitStack() as services:
        script = _flood_script(peer_megabytes)
        commands = [*_own_commands(place, services, script), *_peer_commands(place, services, script)]
        floods = plan.interleave({command.name: _flooded(command) for command in commands})
        for name, samples in floods.items():
            result.add(f"{name}: {peer_megabytes} MB of lines", "MB/s", [each.megabytes_per_s for each in samples])
            intact = [float(one.digest == bare.digest) for one, bare in zip(samples, floods[BARE], strict=True)]
            result.add(f"{name}: {peer_megabytes} MB arrived complete, in order, once", "of 1", intact)


def _latency(plan: Plan, result: Result, seconds: int) -> None:
    script = TICKS.format(lines=PER_SECOND * seconds, per_second=PER_SECOND)
    with workplace() as place, ExitStack() as services:
        commands = _own_commands(place, services, script)
        if not plan.alone:
            commands += _peer_commands(place, services, script)
        delays = plan.interleave({command.name: _delayed(command) for command in commands})
    for name, samples in delays.items():
        for percent in (50, 99):
            goal = Goal(at_most=150.0) if (name, percent) == (STOKER, 99) else None
            late = [percentile(sample, percent) * 1000 for sample in samples]
            result.add(f"{name}: line to screen at {PER_SECOND} lines/s, p{percent}", "ms", late, goal)
        arrived = [len(sample) / (PER_SECOND * seconds) for sample in samples]
        result.add(
            f"{name}: share of lines that arrived", "of 1", arrived, Goal(at_least=1.0) if name == STOKER else None
        )


def _flood_script(megabytes: int) -> str:
    filling = LINE_BYTES - len("line 00000000 0000 \n")
    blocks = megabytes * 1_000_000 // (LINE_BYTES * LINES_PER_BLOCK)
    return FLOOD.format(filling=filling, block=LINES_PER_BLOCK, blocks=blocks)


def _own_commands(place: Path, services: ExitStack, script: str) -> list[Command]:
    folder = _project(place, STOKER, script)
    (folder / "stoker.yaml").write_text(f"name: talker\nrun: python {peers.SCRIPT}\n", encoding="utf-8")
    stoker = services.enter_context(Stoker(place / STOKER))
    return [
        Command(BARE, (str(stoker.python), peers.SCRIPT), folder),
        stoker.command(STOKER, "run", folder=folder, before=stoker.start),
    ]


def _peer_commands(place: Path, services: ExitStack, script: str) -> list[Command]:
    head = services.enter_context(peers.ray_head(place))
    return [
        peer.command(_project(place, peer.name, script), place / "home", head if peer is peers.RAY else None)
        for peer in STREAMING
    ]


def _project(place: Path, name: str, script: str) -> Path:
    folder = place / f"project-{name}"
    folder.mkdir()
    (folder / peers.SCRIPT).write_text(script, encoding="utf-8")
    return folder


def _flooded(command: Command) -> Callable[[], Flood]:
    def measure() -> Flood:
        # TorchX shows the lines on its standard error.
        played = on_pipe(command, errors_too=command.name == peers.TORCHX.name)
        lines = LINE.findall(played.output)
        return Flood(
            megabytes_per_s=len(lines) * LINE_BYTES / 1e6 / played.total_s,
            digest=hashlib.sha256(b"".join(lines)).hexdigest(),
            exact=hashlib.sha256(played.output).hexdigest(),
        )

    return measure


def _delayed(command: Command) -> Callable[[], list[float]]:
    """How late each line was; those that never arrived are not among them."""

    def measure() -> list[float]:
        played = on_terminal(command)
        ticks = [(at_s, TICK.search(line)) for at_s, line in played.lines()]
        return [played.begun_at + at_s - float(tick[1]) for at_s, tick in ticks if tick]

    return measure
