"""From the command to the first line of a trivial script, and to the end: Stoker, bare Python and the peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, Playback, on_terminal, workplace
from benchmarks.measure import Goal, Plan, Result, over
from benchmarks.subject import Stoker, installed

HELLO = 'print("hello")\n'
MARK = b"hello"
BARE, UP, DOWN = "bare python", "stoker, server up", "stoker, server down"


def run(plan: Plan) -> Result:
    result = Result("submit", versions={"stoker": installed()})
    with workplace() as place, ExitStack() as services:
        commands = [*_stoker_commands(place, services)]
        if not plan.alone:
            result.versions.update({peer.name: peers.install(peer) for peer in peers.ALL})
            commands += _peer_commands(place, services)
        plays = plan.interleave({command.name: _play(command) for command in commands})
    first = {name: [played.first_s(MARK) for played in each] for name, each in plays.items()}
    total = {name: [played.total_s for played in each] for name, each in plays.items()}
    for name in plays:
        result.add(f"{name}: first line", "s", first[name])
        result.add(f"{name}: total", "s", total[name])
    result.add(f"{UP}: first line over bare", "s", over(first[UP], first[BARE]), Goal(at_most=0.25))
    result.add(f"{DOWN}: first line over bare", "s", over(first[DOWN], first[BARE]), Goal(at_most=1.5))
    result.add(f"{UP}: total over bare", "s", over(total[UP], total[BARE]), Goal(at_most=0.5))
    rivals = [name for name in plays if name not in (BARE, UP, DOWN)]
    if rivals:
        for what, samples in (("first line", first), ("total", total)):
            behind = [min(samples[rival][i] for rival in rivals) - samples[UP][i] for i in range(plan.rounds)]
            result.add(f"{UP}: {what} ahead of the fastest peer", "s", behind, Goal(at_least=0.0))
    return result


def _stoker_commands(place: Path, services: ExitStack) -> list[Command]:
    folder = _project(place, "stoker")
    (folder / "stoker.yaml").write_text(f"name: trivial\nrun: python {peers.SCRIPT}\n", encoding="utf-8")
    up = services.enter_context(Stoker(place / "up"))
    down = services.enter_context(Stoker(place / "down"))
    return [
        Command(BARE, (str(up.python), peers.SCRIPT), folder),
        up.command(UP, "run", folder=folder, before=up.start),
        down.command(DOWN, "run", folder=folder, before=down.stop, after=down.stop),
    ]


def _peer_commands(place: Path, services: ExitStack) -> list[Command]:
    head = services.enter_context(peers.ray_head(place))
    extra = {peers.RAY.name: head}
    return [peer.command(_project(place, peer.name), place / "home", extra.get(peer.name)) for peer in peers.ALL]


def _project(place: Path, name: str) -> Path:
    folder = place / f"project-{name}"
    folder.mkdir()
    (folder / peers.SCRIPT).write_text(HELLO, encoding="utf-8")
    return folder


def _play(command: Command) -> Callable[[], Playback]:
    return lambda: on_terminal(command, limit_s=120)
