"""The whole story of one attempt on one node, in the order in which it happens."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.agent import processes
from stoker.agent.endings import Broken, Ending, by_itself, exit_code, spell
from stoker.agent.interpreter import interpreter
from stoker.agent.launch import Place, commands, meeting_port
from stoker.agent.logs import LogShipper, RankLog
from stoker.agent.masking import Masking
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.outputs import Mirror, OutputsShipper
from stoker.agent.pace import Trouble
from stoker.agent.ranks import Ranks
from stoker.agent.reporting import Reporter
from stoker.agent.stopping import Stopped, Stopping, WishWatch
from stoker.errors import StokerError
from stoker.model import layout
from stoker.model.orders import Orders
from stoker.model.report import Outcome, Phase
from stoker.model.snapshot import Snapshot
from stoker.model.wire import load
from stoker.stores import Store
from stoker.stores.unpack import unpack


@dataclass(frozen=True, slots=True)
class Machine:
    """What the agent was told about the machine it is on."""

    folder: NodeFolder
    environments: Path
    uv: str  # empty: look for it
    library: Path
    environ: Mapping[str, str]


def carry_out(store: Store, orders: Orders, machine: Machine) -> None:
    """Returns when the final report is in the store, or at once where this attempt has been begun by another."""
    attempt = Attempt(store, orders, machine)
    if attempt.reporter.claim():
        attempt.finish(attempt.ending())


class Attempt:
    def __init__(self, store: Store, orders: Orders, machine: Machine) -> None:
        self.store = store
        self.orders = orders
        self.machine = machine
        self.folder = machine.folder
        self.trouble = Trouble()
        self.masking = Masking(machine.environ[name] for name in orders.job.secrets if name in machine.environ)
        self.stopping = Stopping()
        self.reporter = Reporter(store, orders, self.masking, self.trouble)
        self.wishes = WishWatch(store, orders, self.stopping)
        self.ranks = Ranks(self.folder, orders.key)
        self.logs = LogShipper({}, self.masking, self.trouble)
        self.outputs: OutputsShipper | None = None

    def ending(self) -> Ending:
        """Goes through the phases, and turns whatever happens on the way into an ending."""
        try:
            self.stopping.heed_signals()
            self.wishes.start()
            self.unpack()
            place = self.prepare()
            return self.train(place)
        except Stopped:
            return Ending(self.stopping.outcome or Outcome.CANCELLED, None, self.stopping.message)
        except Broken as broken:
            return Ending(Outcome.BROKEN, None, broken.message, broken.hint)
        except StokerError as error:
            return Ending(Outcome.BROKEN, None, error.message, error.hint)
        except OSError as error:
            traceback.print_exc()
            return Ending(Outcome.BROKEN, None, f"the run could not be prepared: {error}")
        except Exception as error:  # a bug: the run must still end with a report that says so
            traceback.print_exc()
            return Ending(Outcome.BROKEN, None, f"the agent failed: {type(error).__name__}: {error}")

    def unpack(self) -> None:
        self.folder.make()
        snapshot = load(Snapshot, self.store.get(layout.snapshot(self.orders.snapshot)))
        unpack(self.store, snapshot, self.folder.work)
        job = self.orders.job
        for name in (job.outputs, *job.checkpoints):
            (self.folder.work / name).mkdir(parents=True, exist_ok=True)
        self.stopping.check()

    def prepare(self) -> Place:
        orders, environ = self.orders, self.machine.environ
        self.reporter.say(phase=Phase.PREPARING)
        count = 1 if orders.job.processes == "gpus" else orders.job.processes
        rank = orders.node * count
        self.logs.add(rank, RankLog(self.store, orders, self.folder, rank))
        self.logs.start()
        found = interpreter(orders.python, self.folder, environ.get("PATH", ""))
        self.stopping.check()
        library = self.machine.library
        port = meeting_port(orders)
        return Place(self.folder, found.python, found.bin, found.venv, library, environ, count, port)

    def train(self, place: Place) -> Ending:
        """Runs the ranks to their end, whatever ends them."""
        job = self.orders.job
        to_start = commands(self.orders, place)
        for command in to_start[1:]:
            self.logs.add(command.rank, RankLog(self.store, self.orders, self.folder, command.rank))
        self.ranks.start(to_start)
        started = time.monotonic()
        self.reporter.say(phase=Phase.RUNNING, started_at=_now())
        mirror = Mirror(self.store, self.orders, self.folder.work / job.outputs, self.reporter.tell)
        self.outputs = OutputsShipper(mirror, self.trouble)
        self.outputs.start()
        self.reporter.live = lambda: {
            "log_bytes": self.logs.sizes(),
            "output_files": mirror.totals[0],
            "output_bytes": mirror.totals[1],
        }

        def check_time() -> None:
            if job.time_limit and time.monotonic() - started >= job.time_limit:
                limit = spell(job.time_limit)
                self.stopping.ask(Outcome.TIMED_OUT, f"the script was stopped after its time limit of {limit}")

        self.ranks.watch(self.stopping, check_time)
        self.reporter.say(
            phase=Phase.SAVING, ended_at=_now(), ranks=tuple(sorted(self.ranks.ends.values(), key=lambda e: e.rank))
        )
        self.ranks.sweep()
        failed = self.ranks.first_failed
        if self.stopping.outcome and self.ranks.asked_to_end and failed is None:
            code = exit_code(self.ranks.ends[min(self.ranks.ends)])
            return Ending(self.stopping.outcome, code, self.stopping.message)
        return by_itself(self.ranks.ends, failed, b"", out_of_memory=False)

    def finish(self, ending: Ending) -> None:
        """Everything into the store, then the final report: whoever reads it finds all it speaks of."""
        processes.end_all(self.orders.key, os.getpid()) if processes.has_children() else None
        self.wishes.finish()
        self.logs.finish()
        if self.outputs:
            self.outputs.finish()
        self.folder.clear()
        self.reporter.finish(
            lambda: {
                "outcome": ending.outcome,
                "exit_code": ending.exit_code,
                "message": self.masking.text("; ".join(t for t in (ending.message, str(self.trouble)) if t)),
                "hint": ending.hint,
            }
        )


def _now() -> datetime:
    return datetime.now(UTC)
