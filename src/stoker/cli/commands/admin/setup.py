"""`stoker admin setup PROVIDER`: shows what it makes and what that costs, asks, makes it, and writes the hand-over.
First, how commands are made for each provider from what it says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, Example, Group
from stoker.cli.commands.setup.doctor import finding_line
from stoker.cli.view import terminal, words
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.local import groundwork
from stoker.client.settings import from_environment
from stoker.model.node.node import Need
from stoker.model.workspace.finding import Finding, Verdict, failed
from stoker.model.workspace.groundwork import Asked, Groundwork, Option, Piece, PieceState
from stoker.model.workspace.handover import Handover

Body = Callable[[Groundwork, Asked, dict[str, Any]], int]  # what a command does with what was said


class PerProvider(Group):
    """One command for each provider that an administrator can set up."""

    def __init__(self, *args: Any, build: Callable[[str], click.Command], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._build = build

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return groundwork.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._build(cmd_name) if cmd_name in self.list_commands(ctx) else None


def provider_command(
    name: str, help: str, options: list[click.Option], examples: list[Example], body: Body, *, teardown: bool = False
) -> Command:
    """The provider's own options, then those that every provider has."""
    found = groundwork.find(name)
    own = [one for one in found.options if one.teardown or not teardown]

    def callback(**given: Any) -> int:
        said = {one.key: given.pop(one.key) for one in own}
        twin = groundwork.rehearse(from_environment(), say) if given.pop("twin") else None
        return body(found, Asked(said, from_environment().environ, twin), given)

    params: list[click.Parameter] = [*map(_option, own), *options, _twin(name)]
    return Command(name, params=params, callback=callback, help=help, examples=examples)


def _option(one: Option) -> click.Option:
    if not one.metavar:
        return click.Option([one.name, one.key], is_flag=True, help=one.help)
    return click.Option([one.name, one.key], metavar=one.metavar, multiple=one.many, help=one.help)


def _twin(name: str) -> click.Option:
    return click.Option(["--twin"], is_flag=True, help=f"On the twin of {name} instead: a rehearsal, for nothing.")


_COLUMNS = (
    Column("RESOURCE"),
    Column("NAME", least=16),
    Column("STATE"),
    Column("A MONTH"),
    Column("WHY", least=16),
)
_STATES = {
    PieceState.MISSING: Cell("to make", "busy"),
    PieceState.CHANGED: Cell("to change", "warn"),
    PieceState.THERE: Cell("there", "good"),
}


def _build(name: str) -> Command:
    return provider_command(
        name,
        f"""Set up {name} for a team, once.

    Shows first what it makes and what that costs, and asks. What is there already stays as it is, so that running it
    again changes nothing, and repairs what was left half done. At the end it writes one file for practitioners, with
    no secret in it: they run `stoker workspace use FILE`.
    """,
        [
            click.Option(["--out"], metavar="FILE", help="Write the hand-over there instead of WORKSPACE.json."),
            click.Option(["-y", "--yes"], is_flag=True, help="Make it without asking."),
            click.Option(["--dry-run"], is_flag=True, help="Show it, and make nothing."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON on stdout, errors too."),
        ],
        [
            (f"stoker admin setup {name} --workspace vision-team --dry-run", "what it would make and cost"),
            (f"stoker admin setup {name} --workspace vision-team --twin --yes", "the same on the twin, for nothing"),
        ],
        _set_up,
    )


setup = PerProvider(
    "setup",
    build=_build,
    help="""Set up a cloud for a team, once.

    Each provider has options of its own: `stoker admin setup PROVIDER --help` shows them.
    """,
    examples=[("stoker admin setup azure --workspace vision-team", "show what it makes and costs, ask, make it")],
)


def _set_up(found: Groundwork, asked: Asked, given: dict[str, Any]) -> int:
    path = Path(given["out"] or f"{asked.text('workspace')}.json")
    checks = _checked(found, asked, as_json=given["as_json"])
    if failed(checks):
        if given["as_json"]:
            show_json({"checks": checks, "pieces": [], "made": [], "file": None, "workspace": None})
        return 1
    pieces = found.plan(asked)
    if given["as_json"] and (given["dry_run"] or not given["yes"]):
        show_json({"checks": checks, "pieces": pieces, "made": [], "file": None, "workspace": None})
        return 0
    if not given["as_json"]:
        _tell(pieces)
    if given["dry_run"]:
        return 0
    groundwork.check_writable(path, asked.text("workspace"))
    to_do = [one for one in pieces if one.state is not PieceState.THERE]
    if to_do and not (given["yes"] or terminal.ask(f"make or change {words.count(len(to_do), 'thing')}?")):
        return 1
    return _make(found, asked, pieces, path, as_json=given["as_json"])


def _checked(found: Groundwork, asked: Asked, *, as_json: bool) -> list[Finding]:
    """What would keep runs from starting, whatever is set up. Good news is not told."""
    checks = list(found.preflight(asked, (Need(spot=True), Need())))
    for one in checks if not as_json else ():
        if one.verdict is not Verdict.OK:
            say(finding_line(one, widest=0))
    return checks


def _make(found: Groundwork, asked: Asked, pieces: Sequence[Piece], path: Path, *, as_json: bool) -> int:
    made: list[Piece] = []

    def tell(piece: Piece) -> None:
        made.append(piece)
        if not as_json:
            say(f"{'made' if piece.state is PieceState.MISSING else 'changed'} the {piece.kind} {piece.name}")

    handover = found.lay(asked, tell)
    written = groundwork.write(handover, path)
    if as_json:
        show_json({"pieces": pieces, "made": made, "file": str(path), "workspace": handover})
    else:
        _conclude(made, handover, path, written)
    return 0


def _tell(pieces: Sequence[Piece]) -> None:
    rows: list[list[Cell | str]] = [[one.kind, one.name, _STATES[one.state], _cost(one), one.why] for one in pieces]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    counts = Counter(one.state for one in pieces)
    parts = [f"{counts[state]} {cell.text}" for state, cell in _STATES.items() if counts[state]]
    known = sum(one.usd_per_month or 0 for one in pieces)
    by_use = [f"{one.kind} {one.cost}" for one in pieces if one.cost]
    also = f", and by use: {', '.join(by_use)}" if by_use else ""
    say(f"{', '.join(parts)}; ${known:.2f} a month{also}. machines cost while they run: stoker plan")


def _cost(one: Piece) -> str:
    if one.cost:
        return one.cost
    return "unknown" if one.usd_per_month is None else f"${one.usd_per_month:.2f}"


def _conclude(made: Sequence[Piece], handover: Handover, path: Path, written: bool) -> None:
    if not made:
        say("everything was there: nothing was changed")
    say(f"{path} {'is' if written else 'was already'} the file for practitioners; it holds no secret. they run:")
    for line in (*handover.login, f"stoker workspace use {path.name}"):
        show(f"  {line}")
