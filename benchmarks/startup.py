"""How long a command takes before it does anything: `--help` of everyone, and `ps` over many stored runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, on_pipe, workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import Stoker, installed
from stoker.testing.seeds import fill

PEERS_WITH_COMMAND = (peers.TORCHX, peers.METAFLOW, peers.MLFLOW, peers.RAY)


def run(plan: Plan) -> Result:
    result = Result("startup", versions={"stoker": installed()})
    runs = plan.size(10_000, 1_000)
    bare, help_, ps = "bare python", "stoker --help", f"stoker ps, {runs:,} runs"
    with workplace() as place, Stoker(place / "stoker") as stoker:
        fill(stoker.home, runs)
        commands = [
            Command(bare, (str(stoker.python), "-c", "pass"), place),
            stoker.command(help_, "--help", folder=place),
            stoker.command(ps, "ps", folder=place, before=stoker.start),
            stoker.command(f"stoker ps --json, {runs:,} runs", "ps", "--json", folder=place, before=stoker.start),
        ]
        if not plan.alone:
            commands += [_help_of(peer, place, result) for peer in PEERS_WITH_COMMAND]
        samples = plan.interleave({command.name: _seconds(command) for command in commands})
    goals = {help_: Goal(at_most=0.15), ps: Goal(at_most=0.4)}
    for name, taken in samples.items():
        result.add(name, "s", taken, goals.get(name))
    return result


def _help_of(peer: peers.Peer, place: Path, result: Result) -> Command:
    result.versions[peer.name] = peers.install(peer)
    argv = (str(peer.bin / peer.name), "--help")
    return Command(f"{peer.name} --help", argv, place, peer.surroundings(place / "home"))


def _seconds(command: Command) -> Callable[[], float]:
    return lambda: on_pipe(command, limit_s=60).total_s
