"""`python -m benchmarks [submit …] [--quick]`: measures, prints a table per benchmark, keeps the results."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    azure,
    checkpoint,
    containers,
    data,
    engines,
    environment,
    eviction,
    gang,
    horses,
    logs,
    mount,
    ncf,
    policy,
    queue,
    ranks,
    scheduling,
    simulation,
    snapshot,
    startup,
    submit,
    sweep,
)
from benchmarks.commands import CommandFailed, alone
from benchmarks.measure import Plan, Result
from benchmarks.peers import PEERS

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[Plan], Result]] = {
    "startup": startup.run,
    "submit": submit.run,
    "containers": containers.run,
    "logs": logs.run,
    "snapshot": snapshot.run,
    "queue": queue.run,
    "sweep": sweep.run,
    "checkpoint": checkpoint.run,
    "ranks": ranks.run,
    "eviction": eviction.run,
    "gang": gang.run,
    "engines": engines.run,
    "data": data.run,
    "environment": environment.run,
    "mount": mount.run,
    "ncf": ncf.run,
    "policy": policy.run,
    "scheduling": scheduling.run,
    "simulation": simulation.run,
    "horses": horses.run,
    "azure": azure.run,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code is 1 when a goal was missed, or not measured; the other benchmarks go on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(BENCHMARKS)}; all when none is given")
    parser.add_argument("--quick", action="store_true", help="3 rounds and smaller sizes; kept in results/quick")
    parser.add_argument("--alone", action="store_true", help="without the peers; nothing is kept")
    parser.add_argument("--rounds", type=int, help="how often each is measured (7, or 3 with --quick)")
    parser.add_argument(
        "--patience", type=float, default=4.0, metavar="S", help="longest wait for a quiet machine before each sample"
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark `{unknown[0]}`; there are {', '.join(BENCHMARKS)}")
    # A benchmark that is told to end stops its servers first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = given.rounds or (3 if given.quick else 7)
    plan = Plan(rounds, quick=given.quick, alone=given.alone, patience_s=given.patience)
    PEERS.mkdir(exist_ok=True)
    with alone(PEERS / "lock"):
        missed = sum(_missed(name, plan) for name in given.names or BENCHMARKS)
    return 1 if missed else 0


def _missed(name: str, plan: Plan) -> int:
    """Measures and shows one benchmark: how many goals it missed."""
    try:
        result = BENCHMARKS[name](plan)
    except CommandFailed as error:
        print(f"{name} could not be measured: {error}\n", flush=True)
        return 1
    print(result.table(), *(f"  {note}" for note in result.notes), sep="\n")
    if not plan.alone:
        print(f"  kept in {result.save(RESULTS / 'quick' if plan.quick else RESULTS)}")
    print(flush=True)
    return sum(figure.verdict == "missed" for figure in result.figures)


if __name__ == "__main__":
    sys.exit(main())
