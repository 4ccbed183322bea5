"""`stoker admin setup PROVIDER`: shows what it creates and the cost, asks, creates it, and writes the hand-over file.
First, how a command is built for each provider from the options it declares.
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
from stoker.cli.view.tables import Column, TableCell, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.local import groundwork
from stoker.client.settings import from_environment
from stoker.model.node.node import Need
from stoker.model.workspace.finding import CheckResult, Finding, failed
from stoker.model.workspace.groundwork import GivenOptions, Groundwork, GroundworkPiece, Option, PieceState
from stoker.model.workspace.handover import Handover

Body = Callable[[Groundwork, GivenOptions, dict[str, Any]], int]  # the command, given its options


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
    """The provider's own options, then those of every provider."""
    found = groundwork.find(name)
    own = [one for one in found.options if one.teardown or not teardown]

    def callback(**given: Any) -> int:
        said = {one.key: given.pop(one.key) for one in own}
        twin = groundwork.rehearse(from_environment(), say) if given.pop("twin") else None
        return body(found, GivenOptions(said, from_environment().environ, twin), given)

    params: list[click.Parameter] = [*map(_option, own), *options, _twin(name)]
    return Command(name, params=params, callback=callback, help=help, examples=examples)


def _option(one: Option) -> click.Option:
    if not one.metavar:
        return click.Option([one.name, one.key], is_flag=True, help=one.help)
    return click.Option([one.name, one.key], metavar=one.metavar, multiple=one.many, help=one.help)


def _twin(name: str) -> click.Option:
    return click.Option(["--twin"], is_flag=True, help=f"Rehearse it on the twin of {name}, free of charge.")


_COLUMNS = (
    Column("RESOURCE"),
    Column("NAME", least=16),
    Column("STATE"),
    Column("A MONTH"),
    Column("WHY", least=16),
)
_STATES = {
    PieceState.MISSING: TableCell("to create", "busy"),
    PieceState.CHANGED: TableCell("to change", "warn"),
    PieceState.THERE: TableCell("there", "good"),
}


def _build(name: str) -> Command:
    return provider_command(
        name,
        f"""Set up {name} for a team, once.

    First shows what it creates and what that costs, and asks. Existing resources stay as they are, so running it again
    changes nothing and repairs an interrupted set-up. At the end it writes one file for practitioners, without secrets:
    they run `stoker workspace use FILE`.
    """,
        [
            click.Option(["--out"], metavar="FILE", help="Write the hand-over file here [default: WORKSPACE.json]."),
            click.Option(["-y", "--yes"], is_flag=True, help="Create it without asking."),
            click.Option(["--dry-run"], is_flag=True, help="Show it, and create nothing."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON to stdout, including errors."),
        ],
        [
            (f"stoker admin setup {name} --workspace vision-team --dry-run", "what it would create and cost"),
            (f"stoker admin setup {name} --workspace vision-team --twin --yes", "the same on the twin, free of charge"),
        ],
        _set_up,
    )


setup = PerProvider(
    "setup",
    build=_build,
    help="""Set up a cloud for a team, once.

    Each provider has its own options: see `stoker admin setup PROVIDER --help`.
    """,
    examples=[("stoker admin setup azure --workspace vision-team", "show what it creates and costs, ask, create it")],
)


def _set_up(found: Groundwork, asked: GivenOptions, given: dict[str, Any]) -> int:
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
    if to_do and not (given["yes"] or terminal.ask(f"create or change {words.count(len(to_do), 'resource')}?")):
        return 1
    return _make(found, asked, pieces, path, as_json=given["as_json"])


def _checked(found: Groundwork, asked: GivenOptions, *, as_json: bool) -> list[Finding]:
    """Reports what would prevent runs from starting, whatever is set up; only problems are printed."""
    checks = list(found.preflight(asked, (Need(spot=True), Need())))
    for one in checks if not as_json else ():
        if one.verdict is not CheckResult.OK:
            say(finding_line(one, widest=0))
    return checks


def _make(
    found: Groundwork, asked: GivenOptions, pieces: Sequence[GroundworkPiece], path: Path, *, as_json: bool
) -> int:
    made: list[GroundworkPiece] = []

    def tell(piece: GroundworkPiece) -> None:
        made.append(piece)
        if not as_json:
            say(f"{'created' if piece.state is PieceState.MISSING else 'changed'} the {piece.kind} {piece.name}")

    handover = found.lay(asked, tell)
    written = groundwork.write(handover, path)
    if as_json:
        show_json({"pieces": pieces, "made": made, "file": str(path), "workspace": handover})
    else:
        _conclude(made, handover, path, written)
    return 0


def _tell(pieces: Sequence[GroundworkPiece]) -> None:
    rows: list[list[TableCell | str]] = [
        [one.kind, one.name, _STATES[one.state], _cost(one), one.why] for one in pieces
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    counts = Counter(one.state for one in pieces)
    parts = [f"{counts[state]} {cell.text}" for state, cell in _STATES.items() if counts[state]]
    known = sum(one.usd_per_month or 0 for one in pieces)
    by_use = [f"{one.kind} {one.cost}" for one in pieces if one.cost]
    also = f", plus by use: {', '.join(by_use)}" if by_use else ""
    say(f"{', '.join(parts)}; ${known:.2f} a month{also}. Machines are billed while they run: see `stoker plan`")


def _cost(one: GroundworkPiece) -> str:
    if one.cost:
        return one.cost
    return "unknown" if one.usd_per_month is None else f"${one.usd_per_month:.2f}"


def _conclude(made: Sequence[GroundworkPiece], handover: Handover, path: Path, written: bool) -> None:
    if not made:
        say("everything exists already: nothing was changed")
    say(f"{'wrote' if written else 'unchanged:'} {path}, the file for practitioners, without secrets. They run:")
    for line in (*handover.login, f"stoker workspace use {path.name}"):
        show(f"  {line}")
