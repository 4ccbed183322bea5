"""`stoker admin teardown PROVIDER`: what is there of a set-up, its removal, and the proof that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stoker.cli.command import Command
from stoker.cli.commands.admin.setup import PerProvider, provider_command
from stoker.cli.view import terminal, words
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.errors import Conflict
from stoker.model.workspace.groundwork import Asked, Groundwork, Piece, PieceState

_COLUMNS = (Column("RESOURCE"), Column("NAME", least=16), Column("STATE"), Column("DATA", right=True))
_STATES = {
    PieceState.THERE: Cell("there"),
    PieceState.LIVE: Cell("in use", "warn"),
    PieceState.FOREIGN: Cell("somebody else's", "warn"),
}


def _build(name: str) -> Command:
    return provider_command(
        name,
        f"""Take the set-up of {name} away again.

    Lists what is there, with the size of the data, and asks. Nothing is removed while runs are live, or while somebody
    else keeps something in the workspace's group, unless you say `--force`. Data that is removed is lost. Ends with
    what the cloud says is left: the exit code is 1 where that is anything.
    """,
        [
            click.Option(["--force"], is_flag=True, help="Also machines of live runs, and what others have put there."),
            click.Option(["-y", "--yes"], is_flag=True, help="Remove it without asking."),
            click.Option(["--dry-run"], is_flag=True, help="Show it, and remove nothing."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON on stdout, errors too."),
        ],
        [
            (f"stoker admin teardown {name} --workspace vision-team --dry-run", "what is there, and how much data"),
            (f"stoker admin teardown {name} --workspace vision-team", "ask, and remove it"),
        ],
        _tear_down,
        teardown=True,
    )


teardown = PerProvider(
    "teardown",
    build=_build,
    help="""Take a set-up away again, and prove that nothing is left.

    Each provider has options of its own: `stoker admin teardown PROVIDER --help` shows them.
    """,
    examples=[("stoker admin teardown azure --workspace vision-team", "list it, ask, and remove it")],
)


def _tear_down(found: Groundwork, asked: Asked, given: dict[str, Any]) -> int:
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


def _remove(found: Groundwork, asked: Asked, pieces: Sequence[Piece], *, as_json: bool) -> int:
    removed: list[Piece] = []

    def tell(piece: Piece) -> None:
        removed.append(piece)
        if not as_json:
            say(f"removed the {piece.kind} {piece.name}")

    left = found.remove(asked, tell) if pieces else []
    if as_json:
        show_json({"pieces": pieces, "removed": removed, "left": left})
    else:
        say(f"{words.count(len(left), 'resource')} left{': ' if left else ', $0.00 a month'}" + _names(left))
    return 1 if left else 0


def _refuse(pieces: Sequence[Piece], workspace: str) -> None:
    live = [one for one in pieces if one.state is PieceState.LIVE]
    if live:
        raise Conflict(
            f"runs are live in {workspace}: {_names(live)}",
            hint="wait for them, `stoker cleanup`, or say --force to end them",
        )
    foreign = [one for one in pieces if one.state is PieceState.FOREIGN]
    if foreign:
        raise Conflict(
            f"somebody else keeps something in the group of {workspace}: {_names(foreign)}",
            hint="move it elsewhere, or say --force to remove it as well",
        )


def _names(pieces: Sequence[Piece]) -> str:
    return ", ".join(f"{one.kind} {one.name}" for one in pieces)


def _question(pieces: Sequence[Piece]) -> str:
    held = [one.size_bytes for one in pieces if one.size_bytes]
    what = words.count(len(pieces), "thing")
    return f"remove {what} and lose {words.size(sum(held))} of data?" if held else f"remove {what}?"


def _tell(pieces: Sequence[Piece], workspace: str) -> None:
    if not pieces:
        say(f"nothing of the workspace {workspace} is there")
        return
    rows: list[list[Cell | str]] = [[one.kind, one.name, _STATES[one.state], _data(one)] for one in pieces]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _data(one: Piece) -> str:
    return one.cost if one.size_bytes is None else words.size(one.size_bytes)
