"""`stoker admin teardown PROVIDER`: lists a set-up, removes it, and verifies that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stoker.cli.command import Command
from stoker.cli.commands.admin.setup import PerProvider, provider_command
from stoker.cli.view import terminal, words
from stoker.cli.view.tables import Column, TableCell, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.errors import Conflict
from stoker.model.workspace.groundwork import GivenOptions, Groundwork, GroundworkPiece, PieceState

_COLUMNS = (Column("RESOURCE"), Column("NAME", least=16), Column("STATE"), Column("DATA", right=True))
_STATES = {
    PieceState.THERE: TableCell("there"),
    PieceState.LIVE: TableCell("in use", "warn"),
    PieceState.FOREIGN: TableCell("not Stoker's", "warn"),
}


def _build(name: str) -> Command:
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
        _tear_down,
        teardown=True,
    )


teardown = PerProvider(
    "teardown",
    build=_build,
    help="""Remove a set-up, and verify that nothing is left.

    Each provider has its own options: see `stoker admin teardown PROVIDER --help`.
    """,
    examples=[("stoker admin teardown azure --workspace vision-team", "list it, ask, and remove it")],
)


def _tear_down(found: Groundwork, asked: GivenOptions, given: dict[str, Any]) -> int:
    pieces = found.survey(asked)
    if given["as_json"] and (given["dry_run"] or not given["yes"]):
        show_json({"pieces": pieces, "removed": [], "left": pieces})
        return 0
    if not given["as_json"]:
        _tell(pieces, asked.text("workspace"))
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
    return f"remove {what} and permanently delete {words.size(sum(held))} of data?" if held else f"remove {what}?"


def _tell(pieces: Sequence[GroundworkPiece], workspace: str) -> None:
    if not pieces:
        say(f"workspace {workspace} does not exist: nothing to remove")
        return
    rows: list[list[TableCell | str]] = [[one.kind, one.name, _STATES[one.state], _data(one)] for one in pieces]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _data(one: GroundworkPiece) -> str:
    return one.cost if one.size_bytes is None else words.size(one.size_bytes)
