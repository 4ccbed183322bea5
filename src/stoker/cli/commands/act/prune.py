"""`stoker prune` and `stoker rm`: deletes runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import click

from stoker.cli.command import NEWEST, Command, json_option, run_arguments
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import say, show_json
from stoker.cli.view.words import tell
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.resources import UnusedPackages, prune_rule, set_prune_rule
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict
from stoker.model.cause import Cause
from stoker.model.job.fields import Problems
from stoker.model.job.values import Duration
from stoker.model.run.run import PruneRule, Spared

_MOST = 10_000  # runs per command


@click.command(
    cls=Command,
    examples=[
        ("stoker prune --older-than 30d --keep-best", "list what would be deleted, and ask"),
        ("stoker prune --older-than 7d --experiment ants --yes", "runs of one experiment, without confirmation"),
        ("stoker prune --older-than 30d --keep-best --daily", "let the server do it every day"),
        ("stoker prune --no-daily", "stop that"),
    ],
)
@click.option(
    "--older-than", default="", metavar="TIME", help="Only runs that ended longer ago, such as `30d` or `12h`."
)
@click.option("--keep-best", is_flag=True, help="Also keep the best run of each experiment.")
@click.option("--experiment", default="", metavar="NAME", help="Only runs of this job.")
@click.option("--daily/--no-daily", default=None, help="Let the server do this every day, or stop that.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def command(older_than: str, keep_best: bool, experiment: str, daily: bool | None, yes: bool, as_json: bool) -> int:
    """Delete old runs, with their stored files.

    Lists first what would be deleted, with its size. Active runs stay, and so does the newest run of each experiment;
    with --keep-best also the best one, by the metric that its job names in `retention.best` or `stop_when` (if it names
    none: the newest run that succeeded). Either all listed runs are deleted or none, as with `stoker rm`. Without
    --experiment, cached packages that no run has used for that long are deleted, too.

    With --daily the server applies the rule every day while it runs; `stoker prune` without options shows the current
    rule.
    """
    client = Client.connect()
    if not older_than:
        return _without_age(client, keep_best or bool(experiment), daily, as_json)
    rule = PruneRule(_seconds(older_than), keep_best, experiment)
    gone, spared = client.prunable(timedelta(seconds=rule.older_than_s), keep_best=keep_best, experiment=experiment)
    if len(gone) > _MOST:
        say(f"{len(gone)} runs are old enough: the oldest {_MOST} are deleted now")
        gone = gone[:_MOST]
    names = [run.name for run in gone]
    sizes = client.sizes(*names)
    software = UnusedPackages.look(from_environment(), rule)
    told = {"would_remove": names, "spared": spared, "sizes": sizes, "software_bytes": software.size_bytes}
    if as_json and not yes:
        show_json({**told, "removed": [], "pending": {}})
        return 0
    if not as_json:
        _tell_spared(spared)
        if gone:
            tell(gone, sizes, datetime.now(UTC))
        _tell_unused(software)
    if daily and not terminal.confirmed(f"let the server delete {_words(rule)} every day?", yes=yes):
        return 1
    if gone and not terminal.confirmed(f"permanently delete {words.count(len(gone), 'run')}?", yes=yes):
        return 1
    software.remove()  # rebuilt when needed, so no confirmation is required
    if daily is not None:
        set_prune_rule(client.connection, rule if daily else None)
    pending = client.remove(*names) if gone else {}
    if as_json:
        show_json({**told, "removed": names, "pending": pending})
        return 0
    own = sum(one.stored - one.code for one in sizes.runs.values())  # other runs may share the code
    say(
        f"deleted {words.count(len(gone), 'run')}" + (f": freed {words.size_text(own)} and unused code" if gone else "")
    )
    tell_pending(pending)
    if daily:
        say(f"the server now deletes {_words(rule)} every day; stop that with `stoker prune --no-daily`")
    return 0


def _tell_unused(packages: UnusedPackages) -> None:
    if packages.size_bytes:
        size = words.size_text(packages.size_bytes)
        say(f"cached packages that no run has used since then: {size} in {packages.folder}")


def _without_age(client: Client, wanted: bool, daily: bool | None, as_json: bool) -> int:
    if daily or wanted:
        raise BadInput(
            "`stoker prune` requires --older-than", hint="stoker prune --older-than 30d", cause=Cause.OPTIONS_CONFLICT
        )
    if daily is False:
        set_prune_rule(client.connection, None)
    rule = prune_rule(client.connection)
    if as_json:
        show_json({"rule": rule})
    elif rule:
        say(f"the server deletes {_words(rule)} every day; stop that with `stoker prune --no-daily`")
    else:
        say("the server deletes no runs; list old ones with `stoker prune --older-than 30d`")
    return 0


def _tell_spared(spared: Sequence[Spared]) -> None:
    for one in spared:
        say(f"keeps {one.name}: {one.why}")


def _words(rule: PruneRule) -> str:
    whose = f"runs of {rule.experiment}" if rule.experiment else "runs"
    kept = "the newest and the best of each experiment" if rule.keep_best else "the newest of each experiment"
    return f"{whose} that ended more than {words.duration(rule.older_than_s)} ago, except {kept},"


def _seconds(text: str) -> float:
    if text.strip() in ("0", "0s", "0d"):
        return 0.0
    try:
        return Duration().read(text, "--older-than")
    except Problems as found:
        raise BadInput(str(found.problems[0])) from None


@click.command(
    cls=Command,
    examples=[
        ("stoker rm ants-7", "delete one run"),
        ("stoker rm ants-7 ants-8 --yes", "delete two without confirmation"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def remove(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Delete runs that have ended, with their stored files.

    Deletes logs, metrics, checkpoints and stored outputs, and code and environments that no other run uses; outputs
    that were downloaded to a folder of yours stay there. Nothing is deleted if one of the runs does not exist, is
    active, has a node that is kept, is about to be resumed by another run, or is in a store that cannot be reached.
    Names of experiments are refused. Without a terminal, `--yes` is required.
    """
    client = Client.connect()
    meant = {name: client.run(name) for name in names}
    for name, run in meant.items():
        _check(name, run)
    runs = list({run.name: run for run in meant.values()}.values())
    question = f"permanently delete {words.count(len(runs), 'run')} ({', '.join(run.name for run in runs)})?"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    pending = client.remove(*(run.name for run in runs))
    if as_json:
        show_json({"removed": [run.name for run in runs], "pending": pending})
        return 0
    for run in runs:
        say(f"deleted {run.name}")
    tell_pending(pending)
    return 0


def tell_pending(pending: Mapping[str, str]) -> None:
    """Reports deleted runs of which some files are still stored."""
    for name, why in pending.items():
        say(f"{name}: some of its files are still in the store ({why}); the server keeps deleting them")


def _check(name: str, run: RunHandle) -> None:
    """Raises what prevents the deletion, before asking; the server checks the rest."""
    if name not in (run.name, NEWEST):
        raise BadInput(
            f"`{name}` is an experiment, not a run",
            hint=f"name its runs: `stoker rm {run.name}`",
            cause=Cause.EXPERIMENT_NAMED,
        )
    if not run.state.ended:
        raise Conflict(
            f"`{run.name}` is {run.state}", hint=f"cancel it first: `stoker cancel {run.name}`", cause=Cause.RUN_ACTIVE
        )
    if run.facts.kept_until:
        raise Conflict(
            f"the node of `{run.name}` is kept",
            hint=f"release it first: `stoker release {run.name}`",
            cause=Cause.NODE_KEPT,
        )
