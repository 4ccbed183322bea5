"""`stoker prune` and `stoker rm`: runs that are no longer wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import click

from stoker.cli.command import NEWEST, Command, json_option, run_arguments
from stoker.cli.view import terminal, words
from stoker.cli.view.sizes import tell
from stoker.cli.view.terminal import say, show_json
from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.client.api.leftovers import UnusedPackages, prune_rule, set_prune_rule
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict
from stoker.model.job.fields import Duration, Problems
from stoker.model.run.pruning import PruneRule, Spared

_MOST = 10_000  # that are removed at once


@click.command(
    cls=Command,
    examples=[
        ("stoker prune --older-than 30d --keep-best", "list what would go, and ask"),
        ("stoker prune --older-than 7d --experiment ants --yes", "of one experiment, without being asked"),
        ("stoker prune --older-than 30d --keep-best --daily", "from now on the server does it by itself"),
        ("stoker prune --no-daily", "and from now on no longer"),
    ],
)
@click.option("--older-than", default="", metavar="TIME", help="Runs that ended longer ago: `30d`, `12h`.")
@click.option("--keep-best", is_flag=True, help="Keep the best run of each experiment, too.")
@click.option("--experiment", default="", metavar="NAME", help="Only runs of this job.")
@click.option("--daily/--no-daily", default=None, help="Let the server do this by itself, or stop that.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def command(older_than: str, keep_best: bool, experiment: str, daily: bool | None, yes: bool, as_json: bool) -> int:
    """Remove old runs and what is stored of them.

    What would go is listed first, with what it takes up. Runs that are under way stay, and so does the newest run of
    each experiment; with --keep-best also the best one, by the metric that its job names in `retention.best` or
    `stop_when` (where it names none: the newest that succeeded). All of them are removed or none, as by `stoker rm`.
    Without --experiment, lists and wheels of packages go, too, that no run has taken to a cloud for so long.

    With --daily the server follows the rule by itself, every day that it runs; `stoker prune` without options says
    which rule there is.
    """
    client = Client.connect()
    if not older_than:
        return _without_age(client, keep_best or bool(experiment), daily, as_json)
    rule = PruneRule(_seconds(older_than), keep_best, experiment)
    gone, spared = client.prunable(timedelta(seconds=rule.older_than_s), keep_best=keep_best, experiment=experiment)
    if len(gone) > _MOST:
        say(f"{len(gone)} runs are old enough: the oldest {_MOST} of them go now")
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
    if daily and not terminal.confirmed(f"let the server remove {_words(rule)} every day?", yes=yes):
        return 1
    if gone and not terminal.confirmed(f"remove {words.count(len(gone), 'run')} for good?", yes=yes):
        return 1
    software.remove()  # made again when it is needed, so nobody is asked
    if daily is not None:
        set_prune_rule(client.connection, rule if daily else None)
    pending = client.remove(*names) if gone else {}
    if as_json:
        show_json({**told, "removed": names, "pending": pending})
        return 0
    own = sum(one.stored - one.code for one in sizes.runs.values())  # other runs may have the same code
    say(f"removed {words.count(len(gone), 'run')}" + (f": {words.size(own)} and unused code are freed" if gone else ""))
    tell_pending(pending)
    if daily:
        say(f"the server removes {_words(rule)} every day from now on; `stoker prune --no-daily` ends that")
    return 0


def _tell_unused(packages: UnusedPackages) -> None:
    if packages.size_bytes:
        say(f"packages that no run took along since then: {words.size(packages.size_bytes)} in {packages.folder}")


def _without_age(client: Client, wanted: bool, daily: bool | None, as_json: bool) -> int:
    if daily or wanted:
        raise BadInput("--older-than is missing: how old are runs that may go?", hint="stoker prune --older-than 30d")
    if daily is False:
        set_prune_rule(client.connection, None)
    rule = prune_rule(client.connection)
    if as_json:
        show_json({"rule": rule})
    elif rule:
        say(f"the server removes {_words(rule)} every day; `stoker prune --no-daily` ends that")
    else:
        say("the server removes no run by itself; `stoker prune --older-than 30d` lists old ones")
    return 0


def _tell_spared(spared: Sequence[Spared]) -> None:
    for one in spared:
        say(f"keeps {one.name}: {one.why}")


def _words(rule: PruneRule) -> str:
    whose = f"runs of {rule.experiment}" if rule.experiment else "runs"
    kept = "the newest and the best of each experiment" if rule.keep_best else "the newest of each experiment"
    return f"{whose} that ended more than {words.duration(rule.older_than_s)} ago, but {kept},"


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
        ("stoker rm ants-7", "remove one run"),
        ("stoker rm ants-7 ants-8 --yes", "remove two without being asked"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def remove(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove ended runs and what is stored of them.

    Logs, metrics, checkpoints and stored outputs go, and code and environments that no other run uses; outputs that
    were brought to a folder of yours stay there. Nothing is removed if one of the runs does not exist, is still going,
    has a node that is kept, is about to be resumed by another run, or is in a store that cannot be reached. The name of
    an experiment is refused. Without a terminal to ask on, `--yes` is needed.
    """
    client = Client.connect()
    meant = {name: client.run(name) for name in names}
    for name, run in meant.items():
        _check(name, run)
    runs = list({run.name: run for run in meant.values()}.values())
    question = f"remove {words.count(len(runs), 'run')} ({', '.join(run.name for run in runs)}) for good?"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    pending = client.remove(*(run.name for run in runs))
    if as_json:
        show_json({"removed": [run.name for run in runs], "pending": pending})
        return 0
    for run in runs:
        say(f"removed {run.name}")
    tell_pending(pending)
    return 0


def tell_pending(pending: Mapping[str, str]) -> None:
    """What is gone, and of which something is still stored."""
    for name, why in pending.items():
        say(f"{name}: some of its files are still in the store ({why}); the server keeps removing them")


def _check(name: str, run: Run) -> None:
    """What would keep it from being removed, before anybody is asked; the server knows the rest."""
    if name not in (run.name, NEWEST):
        raise BadInput(f"`{name}` is an experiment, not a run", hint=f"name its runs: `stoker rm {run.name}`")
    if not run.state.ended:
        raise Conflict(f"`{run.name}` is {run.state}", hint=f"end it first: `stoker cancel {run.name}`")
    if run.facts.kept_until:
        raise Conflict(f"the node of `{run.name}` is kept", hint=f"give it back first: `stoker release {run.name}`")
