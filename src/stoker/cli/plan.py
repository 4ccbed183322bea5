"""`stoker plan`: everything a run would do, with nothing done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stoker.cli import jobsource, words
from stoker.cli.command import Command, job_options, json_option
from stoker.cli.ending import seen_from
from stoker.cli.jobtext import settings
from stoker.cli.tables import pairs
from stoker.cli.terminal import paint_data, say, show, show_json
from stoker.client.client import Client
from stoker.client.submission import Plan


@click.command(
    cls=Command,
    examples=[
        ("stoker plan", "what `stoker run` would do"),
        ("stoker plan --set nodes=4 --json", "with another setting, for a program"),
    ],
)
@job_options()
@json_option()
def command(file: str, sets: tuple[str, ...], on: str, name: str, as_json: bool) -> None:
    """Show what `stoker run` would do, and do nothing.

    Checks the job, looks through the code and the data, and asks the server where the run would go. Nothing is sent,
    started or spent.
    """
    source = jobsource.read(file, sets, on)
    with jobsource.located(source):
        plan = Client.connect().plan(source.job, source.folder)
    if as_json:
        show_json({"plan": facts(plan, name)})
        return
    show(f"{name or f'{plan.job.name}-<n>'} on {plan.job.on}")
    for line in pairs(rows(plan, Path.cwd()), paint_data):
        show(line)
    say("nothing has been done; next: stoker run")


def facts(plan: Plan, name: str) -> dict[str, Any]:
    """The plan for programs. Paths are absolute."""
    return {
        "name": name,
        "job": plan.job,
        "source": str(plan.source),
        "snapshot": plan.snapshot.id,
        "files": plan.files,
        "size_bytes": plan.size_bytes,
        "new_files": plan.new_files,
        "new_bytes": plan.new_bytes,
        "git": plan.git,
        "python": plan.python,
        "environment": plan.environment,
        "data": plan.data,
        "command": plan.command,
        "meanings": plan.meanings,
        "secrets": plan.secrets,
        "land_in": plan.land_in,
        "offer": plan.offer,
        "free": plan.free,
        "queued_ahead": plan.queued_ahead,
    }


def rows(plan: Plan, here: Path) -> list[tuple[str, str]]:
    git = plan.git
    code = f"{words.count(plan.files, 'file')}, {words.size(plan.size_bytes)} in {seen_from(str(plan.source), here)}"
    new = f"{words.count(plan.new_files, 'file')}, {words.size(plan.new_bytes)}" if plan.new_files else "nothing"
    branch = f" on {git.branch}" if git and git.branch else ""
    outputs = f"{plan.job.outputs}, brought to {seen_from(plan.land_in, here)}" if plan.land_in else plan.job.outputs
    return [
        ("where", _where(plan)),
        ("command", plan.command),
        (
            "",
            "\n".join(
                f"${{{name}}} is {value}" for name, value in plan.meanings.items() if f"${{{name}}}" in plan.command
            ),
        ),
        ("code", f"{code}; to send: {new}"),
        ("git", f"{git.commit[:12]}{branch}{', with changes' if git.dirty else ''}" if git else ""),
        ("software", plan.environment),
        ("data", "\n".join(_data(use.name, use.where, use.files, use.size_bytes, use.counted) for use in plan.data)),
        ("outputs", outputs),
        ("secrets", ", ".join(plan.secrets)),
        ("settings", settings(plan.job)),
    ]


def _where(plan: Plan) -> str:
    offer = plan.offer
    place = " ".join(filter(None, [offer.provider, offer.size, offer.place])) if offer else plan.job.on
    price = f", ${offer.usd_per_hour}/hour" if offer and offer.usd_per_hour else ""
    queue = "free now" if plan.free else f"busy now, {words.count(plan.queued_ahead, 'run')} ahead"
    return f"{place}{price}, {queue}"


def _data(name: str, where: str, files: int, size_bytes: int, counted: bool) -> str:
    amount = f"{words.count(files, 'file')}, {words.size(size_bytes)}" if counted else f"more than {files:,} files"
    return f"{name}: {where}" + (f" ({amount})" if files else "")
