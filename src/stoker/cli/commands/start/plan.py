"""`stoker plan`: everything a run would do, without doing it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, job_options, json_option, matrix_option
from stoker.cli.commands.start import jobsource
from stoker.cli.commands.sweep import starting
from stoker.cli.view import terminal, words
from stoker.cli.view.summary import offer_lines, seen_from, settings, variables
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import pairs
from stoker.client.api.client import Client
from stoker.client.data.marks import DataUse
from stoker.client.report.spelling import usd
from stoker.client.source import screening
from stoker.client.submit.plan import Plan
from stoker.model.job.trials import trial_jobs
from stoker.model.workspace.store import is_twin, twin_of


@click.command(
    cls=Command,
    examples=[
        ("stoker plan", "show what `stoker run` would do"),
        ("stoker plan --set retries=2 --json", "with another setting, for a program"),
        ("stoker plan --on azure --hours 10 --gpu A10 --budget 20", "compare machines and costs for 10 hours"),
        ("stoker plan --on azure --currency EUR", "also show prices in euros"),
    ],
)
@job_options()
@matrix_option()
@click.option("--twin", is_flag=True, help="Plan for the twin of that cloud.")
@click.option(
    "--hours", type=click.FloatRange(0, min_open=True), help="How long the work takes [default: as earlier runs did]."
)
@click.option("--gpu", default="", metavar="MODEL", help="Short for --set gpu=MODEL, such as A10 or T4.")
@click.option("--budget", default="", metavar="USD", help="Short for --set budget=USD.")
@click.option("--deadline", default="", metavar="TIME", help="Short for --set deadline=TIME, such as 12h.")
@click.option("--currency", default="USD", metavar="CODE", help="Also show prices in this currency.")
@json_option()
def command(
    file: str,
    sets: tuple[str, ...],
    on: str,
    name: str,
    currency: str,
    as_json: bool,
    env: tuple[str, ...],
    **asked: Any,
) -> None:
    """Show what `stoker run` would do, without doing it.

    FILE is stoker.yaml unless you name another one; a folder stands for the stoker.yaml in it. For a script or notebook
    without a job file, the settings of `stoker init` are used.

    Checks the job, inspects the code and the data, and asks the server where the run would go. If that costs money, it
    shows every offer that fits with its price, the expected time and cost (from earlier runs of the experiment,
    evictions included), and the cheapest way to meet the deadline and the budget. Nothing is uploaded, started or
    billed. Budgets are in dollars, whatever other currency is shown.

    Before a cloud is set up, common machines are shown with the list prices that ship with Stoker, and their date. With
    --hours, --gpu, --budget or --deadline, both on-demand and spot offers are shown (unless the job sets
    `spot: false`), including those that do not fit the limits.
    """
    given = {field: asked[field] for field in ("gpu", "budget", "deadline") if asked[field]}
    sets = (*sets, *(f"{field}={value}" for field, value in given.items()))
    sets = (*sets, *starting.settings(asked["matrix"]))
    source = jobsource.read(file, sets, on, env)
    if asked["twin"]:
        source = jobsource.read(file, sets, twin_of(source.job.on), env)
    both = bool(given or asked["hours"])
    with jobsource.located(source):
        client = Client.connect()
        plan = client.plan(source.job, source.folder)
        costs = plan.offer is not None and plan.offer.usd_per_hour > 0
        one = next(job for _, job in trial_jobs(source.job)) if source.job.matrix else source.job
        forecast = client.forecast(one, currency, hours=asked["hours"], both=both) if costs else None
    if as_json:
        show_json({"plan": plan, "name": name, "forecast": forecast})
        return
    many = "s" if source.job.matrix else ""
    show(f"{name or f'{plan.job.name}-{many}<n>'} on {plan.job.on}")
    work_s = (asked["hours"] or 0.0) * 3600 or plan.job.time_limit or 0.0
    of_sweep = starting.plan_rows(source.job, forecast) if source.job.matrix else []
    for line in pairs([*of_sweep, *rows(plan, Path.cwd(), work_s)], paint_data):
        show(line)
    for line in offer_lines(forecast, datetime.now(UTC), terminal.width(), paint_data) if forecast else ():
        show(line)
    say(f"nothing was changed; next: {_next(plan, on, twin=asked['twin'])}")


def _next(plan: Plan, on: str, *, twin: bool) -> str:
    """The command that does it, or what is required before."""
    where = f" --on {on}" if on else ""
    if plan.offer and plan.offer.unready and not is_twin(plan.job.on):
        setup = "docs/guides/first-cloud-run.md explains the set-up"
        return f"stoker run{where} --twin rehearses it free of charge; {setup}"
    return f"stoker run{where}{' --twin' if twin else ''}"


def rows(plan: Plan, here: Path, work_s: float = 0.0) -> list[tuple[str, str]]:
    git = plan.git
    code = (
        f"{words.count(plan.files, 'file')}, {words.size_text(plan.size_bytes)} in {seen_from(str(plan.source), here)}"
    )
    new = f"{words.count(plan.new_files, 'file')}, {words.size_text(plan.new_bytes)}" if plan.new_files else "nothing"
    branch = f" on {git.branch}" if git and git.branch else ""
    landing = f", downloaded to {Path(seen_from(plan.land_in, here)) / '<run>'}" if plan.land_in else ""
    return [
        ("where", _where(plan)),
        ("limit", _limit(plan, work_s)),
        ("command", "\n".join([plan.command, *(f"${{{name}}}: {value}" for name, value in plan.meanings.items())])),
        ("code", f"{code}; to upload: {new}"),
        ("excluded", ", ".join(plan.left_out)),
        ("git", f"{git.commit[:12]}{branch}{', with changes' if git.dirty else ''}" if git else ""),
        ("software", plan.environment),
        ("data", "\n".join(_data(use) + _moving(use, plan) for use in plan.data)),
        ("outputs", f"{plan.job.outputs}{landing}"),
        ("from shell", variables(plan.taken)),
        ("env file", ", ".join(plan.from_file)),
        ("secrets", ", ".join(plan.secrets)),
        ("checked", "\n".join(screening.lines(plan.findings))),
        ("settings", settings(plan.job)),
        ("note", "\n".join(plan.notes)),
        ("closed", plan.alone),
    ]


def _where(plan: Plan) -> str:
    offer = plan.offer
    place = ", ".join(filter(None, [offer.provider, offer.size, offer.place])) if offer else plan.job.on
    price = f", from {usd(offer.usd_per_hour)} an hour" if offer and offer.usd_per_hour else ""
    busy = f"all busy now, {words.count(plan.queued_ahead, 'run')} ahead"
    queue = "" if plan.free is None else f", {words.count(plan.free, 'slot')} free now" if plan.free else f", {busy}"
    return f"{place}{price}{queue}"


def _limit(plan: Plan, work_s: float) -> str:
    """`work_s` is how long it takes; 0: unknown."""
    limit_s = plan.offer.limit_s if plan.offer else 0.0
    if not limit_s:
        return ""
    each = f"an allocation lasts at most {words.duration(limit_s)}"
    if not work_s:
        return f"{each}; a longer run continues in the next ones"
    needed = words.count(math.ceil(work_s / limit_s), "allocation")
    return f"{each}: {words.duration(work_s)} of work need at least {needed}"


def _data(use: DataUse) -> str:
    amount = f"{words.count(use.files, 'file')}, {words.size_text(use.size_bytes)}"
    return f"{use.name}: {use.where}" + (f" ({'' if use.counted else 'at least '}{amount})" if use.files else "")


def _moving(use: DataUse, plan: Plan) -> str:
    if use.name not in plan.to_store:
        return ""
    from stoker.client.data.datasets import ASSUMED_BYTES_PER_S  # most data is read in place

    takes = words.duration(use.size_bytes / ASSUMED_BYTES_PER_S)
    return (
        f"\n  uploaded to the store first, after you confirm: about {takes} at {words.size_text(ASSUMED_BYTES_PER_S)}/s"
    )
