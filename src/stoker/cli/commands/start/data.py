"""`stoker data`: lists, inspects and deletes datasets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.commands.start.datafiles import add, dataset_names, get, put, verify
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import one_line, paint_data, say, show_json
from stoker.cli.view.terminal import show as print_line
from stoker.cli.view.words import Column, TableCell, pairs, table
from stoker.client.api.client import Client
from stoker.client.data.datasets import DataChange, DataDifference
from stoker.model.dataset import DataFile, DatasetVersion, reference

_MOST_FILES = 20
_MOST_CHANGES = 50
_COLUMNS = (
    Column("DATASET", least=12),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("STORE"),
    Column("AGE", right=True),
    Column("HASH"),
    Column("TAGS", least=6),
    Column("DESCRIPTION", least=10),
)


@click.command(
    cls=Command,
    examples=[("stoker data ls", "the newest version of each"), ("stoker data ls hymenoptera", "all versions of one")],
)
@click.argument("name", required=False, default="", shell_complete=dataset_names)
@click.option("--tag", default="", metavar="TAG", help="Only datasets with this tag.")
@json_option()
def ls(name: str, tag: str, as_json: bool) -> None:
    """List datasets, or the versions of one."""
    versions = [one for one in Client.connect().datasets.versions(name) if not tag or tag in one.tags]
    if as_json:
        show_json({"versions": versions})
        return
    newest = versions if name else [next(one for one in versions if one.name == each) for each in _names(versions)]
    if not newest:
        say(
            "no dataset has this tag"
            if tag
            else "no datasets yet: create one with `stoker data put FOLDER --name NAME`"
        )
        return
    now = datetime.now(UTC)
    for line in table(_COLUMNS, [_row(one, now) for one in newest], terminal.width(), paint_data):
        print_line(line)


@click.command(cls=Command, examples=[("stoker data show hymenoptera@3", "everything about version 3")])
@click.argument("ref", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@click.option("--files", "all_files", is_flag=True, help="List every file.")
@json_option()
def show(ref: str, all_files: bool, as_json: bool) -> None:
    """Show everything about a version of a dataset."""
    datasets = Client.connect().datasets
    version = datasets.show(ref)
    files, runs = datasets.files(version), datasets.runs(version)
    if as_json:
        rows = [file._asdict() for file in files] if all_files else []
        show_json({"version": version, "versions": datasets.versions(version.name), "runs": runs, "files": rows})
        return
    for line in _portrait(version, datasets.versions(version.name), runs):
        print_line(line)
    print_line("")
    for line in _files(files, None if all_files else _MOST_FILES):
        print_line(line)


@click.command(cls=Command, examples=[("stoker data diff hymenoptera@2 hymenoptera@3", "what is new in version 3")])
@click.argument("first", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@click.argument("second", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@json_option()
def diff(first: str, second: str, as_json: bool) -> None:
    """Show what differs between two versions, file by file."""
    found = Client.connect().datasets.diff(first, second)
    if as_json:
        parts = {"added": found.added, "removed": found.removed, "changed": found.changed}
        show_json({"first": found.first, "second": found.second, **parts, "same_files": found.same_files})
        return
    for change in found.changes[:_MOST_CHANGES]:
        print_line(_change(change))
    if len(found.changes) > _MOST_CHANGES:
        print_line(f"… and {len(found.changes) - _MOST_CHANGES:,} more")
    say(_summary(found))


@click.command(
    cls=Command,
    examples=[
        ("stoker data rm hymenoptera@2", "delete one version"),
        ("stoker data rm hymenoptera --yes", "delete all versions, without confirmation"),
    ],
)
@click.argument("ref", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@click.option(
    "--force", is_flag=True, help="Also delete versions that runs have used: those runs cannot be repeated then."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def rm(ref: str, force: bool, yes: bool, as_json: bool) -> int:
    """Delete a version, or a dataset with all its versions.

    Content that no other version contains is deleted from the store. Files that were registered in place stay.
    """
    datasets = Client.connect().datasets
    one = datasets.show(ref)
    versions = [one] if "@" in ref else datasets.versions(reference(ref).name)
    question = f"permanently delete {', '.join(version.ref for version in versions)}?"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    removed = datasets.remove(ref, force=force)
    if as_json:
        show_json(removed)
        return 0
    amount = f"{words.count(removed.files, 'file')}, {words.size_text(removed.size_bytes)} of content deleted"
    say(f"deleted {', '.join(version.ref for version in removed.versions)}")
    say(amount if removed.finished else "its content is still being deleted")
    return 0


def _names(versions: Sequence[DatasetVersion]) -> list[str]:
    return list(dict.fromkeys(version.name for version in versions))


def _row(version: DatasetVersion, now: datetime) -> list[TableCell | str]:
    return [
        version.ref,
        f"{version.files:,}",
        words.size_text(version.size_bytes),
        version.store,
        words.age(version.created_at, now),
        version.id[:8],
        ", ".join(version.tags),
        version.description,
    ]


def _portrait(version: DatasetVersion, versions: Sequence[DatasetVersion], runs: Sequence[str]) -> list[str]:
    now = datetime.now(UTC)
    by = f" by {version.person}" if version.person else ""
    amount = f"{words.count(version.files, 'file')}, {words.size_text(version.size_bytes)}"
    others = ", ".join(str(one.number) for one in versions)
    facts = [
        ("description", one_line(version.description)),
        ("licence", one_line(version.licence)),
        ("tags", one_line(", ".join(version.tags))),
        ("store", version.store),
        ("hash", version.id),
        ("created", f"{words.clock(version.created_at, now)}{by}, {words.age(version.created_at, now)} ago"),
        ("versions", others),
        ("runs", ", ".join(runs[:10]) + (f" and {len(runs) - 10:,} more" if len(runs) > 10 else "")),
    ]
    return [f"{paint_data(version.ref, 'strong')} {amount}", *pairs(facts, paint_data)]


def _files(files: Sequence[DataFile], most: int | None) -> list[str]:
    columns = (Column("FILE", least=20), Column("SIZE", right=True), Column("HASH"))
    rows = [[file.path, words.size_text(file.size_bytes), file.sha256[:8] or "in place"] for file in files[:most]]
    left = len(files) - len(rows)
    more = [f"… and {left:,} more: list all with `--files`"] if left else []
    return table(columns, rows, terminal.width(), paint_data) + more


def _change(change: DataChange) -> str:
    if change.first_bytes is None:
        return paint_data(f"+ {one_line(change.path)}  {words.size_text(change.second_bytes or 0)}", "good")
    if change.second_bytes is None:
        return paint_data(f"- {one_line(change.path)}  {words.size_text(change.first_bytes)}", "error")
    sizes = f"{words.size_text(change.first_bytes)} -> {words.size_text(change.second_bytes)}"
    return paint_data(f"~ {one_line(change.path)}  {sizes}", "warn")


def _summary(found: DataDifference) -> str:
    if not found.changes:
        return f"{found.first.ref} and {found.second.ref} contain the same {words.count(found.same_files, 'file')}"
    counts = [("added", found.added), ("removed", found.removed), ("changed", found.changed)]
    told = [f"{len(changes):,} {what}" for what, changes in counts if changes]
    return f"{', '.join(told)}, {found.same_files:,} the same"


@click.group(
    cls=Group,
    examples=[
        ("stoker data put ./hymenoptera_data --name hymenoptera", "upload a folder to the store, as a new version"),
        ("stoker data add coco 'coco2017/**' --store blob", "register files that are already in a store"),
        ("stoker data get hymenoptera@3", "download version 3 to ./hymenoptera"),
    ],
)
def command() -> None:
    """Upload data to a store and version it.

    A dataset is a named list of files in a store. A version is identified by the hash of its content and has a number:
    `hymenoptera` is the newest, `hymenoptera@3` never changes. Jobs name datasets under `data`.
    """


for part in (put, add, ls, show, get, verify, diff, rm):
    command.add_command(part)
