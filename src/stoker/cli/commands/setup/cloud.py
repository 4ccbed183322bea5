"""`stoker admin setup` and `teardown`: what a cloud needs for a team is created, or removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, Example, Group
from stoker.cli.commands.setup.doctor import finding_line
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.local import rehearsal
from stoker.client.settings import from_environment
from stoker.errors import Conflict
from stoker.model.cause import Cause
from stoker.model.node import Need
from stoker.model.workspace.groundwork import GivenOptions, Groundwork, GroundworkPiece, Option, PieceState
from stoker.model.workspace.handover import Handover
from stoker.model.workspace.store import CheckResult, Finding, failed

Body = Callable[[Groundwork, GivenOptions, dict[str, Any]], int]  # the command, given its options


class PerProvider(Group):
    """One command for each provider that an administrator can set up."""

    def __init__(self, *args: Any, build: Callable[[str], click.Command], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._build = build

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return rehearsal.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._build(cmd_name) if cmd_name in self.list_commands(ctx) else None


def provider_command(
    name: str, help: str, options: list[click.Option], examples: list[Example], body: Body, *, teardown: bool = False
) -> Command:
    """The provider's own options, then those of every provider."""
    found = rehearsal.find(name)
    own = [one for one in found.options if one.teardown or not teardown]

    def callback(**given: Any) -> int:
        said = {one.key: given.pop(one.key) for one in own}
        twin = rehearsal.rehearse(from_environment(), say) if given.pop("twin") else None
        return body(found, GivenOptions(said, from_environment().environ, twin), given)

    params: list[click.Parameter] = [*map(_option, own), *options, _twin(name)]
    return Command(name, params=params, callback=callback, help=help, examples=examples)


def _option(one: Option) -> click.Option:
    if not one.metavar:
        return click.Option([one.name, one.key], is_flag=True, help=one.help)
    return click.Option([one.name, one.key], metavar=one.metavar, multiple=one.many, help=one.help)


def _twin(name: str) -> click.Option:
    return click.Option(["--twin"], is_flag=True, help=f"Rehearse it on the twin of {name}, free of charge.")


_SETUP_COLUMNS = (
    Column("RESOURCE"),
    Column("NAME", least=16),
    Column("STATE"),
    Column("A MONTH"),
    Column("WHY", least=16),
)
_SETUP_STATES = {
    PieceState.MISSING: TableCell("to create", "busy"),
    PieceState.CHANGED: TableCell("to change", "warn"),
    PieceState.THERE: TableCell("there", "good"),
}


def _setup_command(name: str) -> Command:
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
        set_up,
    )


setup = PerProvider(
    "setup",
    build=_setup_command,
    help="""Set up a cloud for a team, once.

    Each provider has its own options: see `stoker admin setup PROVIDER --help`.
    """,
    examples=[("stoker admin setup azure --workspace vision-team", "show what it creates and costs, ask, create it")],
)


def set_up(found: Groundwork, asked: GivenOptions, given: dict[str, Any]) -> int:
    path = Path(given["out"] or f"{asked.text('workspace')}.json")
    checks = _checked(found, asked, as_json=given["as_json"])
    if failed(checks):
        if given["as_json"]:
            show_json({"checks": checks, "pieces": [], "made": [], "file": None, "workspace": None})
        return 1
    _announce(asked, as_json=given["as_json"])
    pieces = found.plan(asked)
    if given["as_json"] and (given["dry_run"] or not given["yes"]):
        show_json({"checks": checks, "pieces": pieces, "made": [], "file": None, "workspace": None})
        return 0
    if not given["as_json"]:
        _tell_setup(pieces)
    if given["dry_run"]:
        return 0
    rehearsal.check_writable(path, asked.text("workspace"))
    to_do = [one for one in pieces if one.state is not PieceState.THERE]
    if to_do and not (given["yes"] or terminal.ask(f"create or change {words.count(len(to_do), 'resource')}?")):
        return 1
    return _make(found, asked, pieces, path, as_json=given["as_json"])


def _checked(found: Groundwork, asked: GivenOptions, *, as_json: bool) -> list[Finding]:
    """Reports what would prevent runs from starting, whatever is set up; only problems are printed."""
    checks: list[Finding] = []
    if not as_json:
        say("checking the account …")
    for one in found.preflight(asked, (Need(spot=True), Need())):
        checks.append(one)
        if one.verdict is not CheckResult.OK and not as_json:
            say(finding_line(one, widest=0))
    return checks


def _announce(asked: GivenOptions, *, as_json: bool) -> None:
    """A cloud that throttles takes minutes to list everything."""
    if not as_json:
        say(f"checking what {asked.text('workspace')} has …")


def _make(
    found: Groundwork, asked: GivenOptions, pieces: Sequence[GroundworkPiece], path: Path, *, as_json: bool
) -> int:
    made: list[GroundworkPiece] = []

    def tell(piece: GroundworkPiece) -> None:
        made.append(piece)
        if not as_json:
            say(f"{'created' if piece.state is PieceState.MISSING else 'changed'} the {piece.kind} {piece.name}")

    handover = found.lay(asked, tell)
    written = rehearsal.write(handover, path)
    if as_json:
        show_json({"pieces": pieces, "made": made, "file": str(path), "workspace": handover})
    else:
        _conclude(made, handover, path, written)
    return 0


def _tell_setup(pieces: Sequence[GroundworkPiece]) -> None:
    rows: list[list[TableCell | str]] = [
        [one.kind, one.name, _SETUP_STATES[one.state], _cost(one), one.why] for one in pieces
    ]
    for line in table(_SETUP_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    counts = Counter(one.state for one in pieces)
    parts = [f"{counts[state]} {cell.text}" for state, cell in _SETUP_STATES.items() if counts[state]]
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


_TEARDOWN_COLUMNS = (Column("RESOURCE"), Column("NAME", least=16), Column("STATE"), Column("DATA", right=True))
_TEARDOWN_STATES = {
    PieceState.THERE: TableCell("there"),
    PieceState.LIVE: TableCell("in use", "warn"),
    PieceState.FOREIGN: TableCell("not Stoker's", "warn"),
}


def _teardown_command(name: str) -> Command:
    return provider_command(
        name,
        f"""Remove the set-up of {name}.

    Lists what exists, with the size of the data, and asks. Nothing is removed while runs are active, or while the
    workspace's group contains resources that Stoker did not create, unless you add `--force`. Removed data is lost.
    At the end it prints what the cloud reports as left: the exit code is 1 if there is anything.
    """,
        [
            click.Option(
                ["--force"],
                is_flag=True,
                help="Also remove machines of active runs, and resources that Stoker did not create.",
            ),
            click.Option(["-y", "--yes"], is_flag=True, help="Remove it without asking."),
            click.Option(["--dry-run"], is_flag=True, help="Show it, and remove nothing."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON to stdout, including errors."),
        ],
        [
            (f"stoker admin teardown {name} --workspace vision-team --dry-run", "list what exists, and how much data"),
            (f"stoker admin teardown {name} --workspace vision-team", "ask, and remove it"),
        ],
        tear_down,
        teardown=True,
    )


teardown = PerProvider(
    "teardown",
    build=_teardown_command,
    help="""Remove a set-up, and verify that nothing is left.

    Each provider has its own options: see `stoker admin teardown PROVIDER --help`.
    """,
    examples=[("stoker admin teardown azure --workspace vision-team", "list it, ask, and remove it")],
)


def tear_down(found: Groundwork, asked: GivenOptions, given: dict[str, Any]) -> int:
    _announce(asked, as_json=given["as_json"])
    pieces = found.survey(asked)
    if given["as_json"] and (given["dry_run"] or not given["yes"]):
        show_json({"pieces": pieces, "removed": [], "left": pieces})
        return 0
    if not given["as_json"]:
        _tell_teardown(pieces, asked.text("workspace"))
    if given["dry_run"]:
        return 0
    if not given["force"]:
        _refuse(pieces, asked.text("workspace"))
    if pieces and not (given["yes"] or terminal.ask(_question(pieces))):
        return 1
    return _remove(found, asked, pieces, as_json=given["as_json"])


def _remove(found: Groundwork, asked: GivenOptions, pieces: Sequence[GroundworkPiece], *, as_json: bool) -> int:
    removed: list[GroundworkPiece] = []

    def tell(piece: GroundworkPiece) -> None:
        removed.append(piece)
        if not as_json:
            say(f"removed the {piece.kind} {piece.name}")

    left = found.remove(asked, tell) if pieces else []
    if as_json:
        show_json({"pieces": pieces, "removed": removed, "left": left})
    else:
        say(f"{words.count(len(left), 'resource')} left{': ' if left else ', $0.00 a month'}" + _names(left))
    return 1 if left else 0


def _refuse(pieces: Sequence[GroundworkPiece], workspace: str) -> None:
    live = [one for one in pieces if one.state is PieceState.LIVE]
    if live:
        raise Conflict(
            f"runs are active in {workspace}: {_names(live)}",
            hint="wait for them, run `stoker cleanup`, or add --force to end them",
            cause=Cause.RUN_ACTIVE,
        )
    foreign = [one for one in pieces if one.state is PieceState.FOREIGN]
    if foreign:
        raise Conflict(
            f"the group of {workspace} contains resources that Stoker did not create: {_names(foreign)}",
            hint="move them to another group, or add --force to remove them, too",
        )


def _names(pieces: Sequence[GroundworkPiece]) -> str:
    return ", ".join(f"{one.kind} {one.name}" for one in pieces)


def _question(pieces: Sequence[GroundworkPiece]) -> str:
    held = [one.size_bytes for one in pieces if one.size_bytes]
    what = words.count(len(pieces), "thing")
    return f"remove {what} and permanently delete {words.size_text(sum(held))} of data?" if held else f"remove {what}?"


def _tell_teardown(pieces: Sequence[GroundworkPiece], workspace: str) -> None:
    if not pieces:
        say(f"workspace {workspace} does not exist: nothing to remove")
        return
    rows: list[list[TableCell | str]] = [
        [one.kind, one.name, _TEARDOWN_STATES[one.state], _data(one)] for one in pieces
    ]
    for line in table(_TEARDOWN_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _data(one: GroundworkPiece) -> str:
    return one.cost if one.size_bytes is None else words.size_text(one.size_bytes)
