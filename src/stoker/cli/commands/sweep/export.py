"""`stoker export`: runs in the tracking server that a team already has."""

from __future__ import annotations

import click

from stoker.cli.command import NEWEST, Command, Group, json_option
from stoker.cli.view.terminal import can_erase, redraw, say, show_json
from stoker.cli.view.words import count
from stoker.client.api.client import Client


@click.group(
    cls=Group,
    examples=[
        ("stoker export mlflow ants", "all runs of an experiment, to MLflow"),
        ("stoker export mlflow ants-s1", "the trials of one sweep"),
    ],
)
def command() -> None:
    """Show runs in a tracking server, such as your team's MLflow.

    What was exported before is not sent again, so repeat it whenever there are new runs.
    """


@command.command(
    cls=Command,
    examples=[
        ("stoker export mlflow ants", "to the server in MLFLOW_TRACKING_URI"),
        ("stoker export mlflow ants-s1 --to http://mlflow.team:5000", "one sweep, to this server"),
        ("stoker export mlflow ants --no-artifacts", "without their outputs"),
    ],
)
@click.argument("name", metavar="[EXPERIMENT]", required=False, default=NEWEST)
@click.option("--to", "url", default="", metavar="URL", help="MLflow's address [default: MLFLOW_TRACKING_URI].")
@click.option("--experiment", default="", metavar="NAME", help="The experiment there [default: the runs' own].")
@click.option("--no-artifacts", is_flag=True, help="Do not upload the outputs.")
@json_option()
def mlflow(name: str, url: str, experiment: str, no_artifacts: bool, as_json: bool) -> None:
    """Export runs to MLflow: values, metrics with their history, and outputs.

    A sweep becomes a run with one child for each trial. Runs that are active are updated at the next export. Requires
    the package `mlflow` or `mlflow-skinny` on this computer, whose own variables say how to log in. Without EXPERIMENT:
    the newest sweep.
    """
    from stoker.client.sweeps.exporting import MlflowExport  # imports a package that few have

    client = Client.connect()
    results = client.results(name)
    there = experiment or client.run(results.rows[0].name).facts.experiment
    into = MlflowExport(client, there, url, artifacts=not no_artifacts)

    def progress(done: int) -> None:
        if can_erase() and not as_json:
            redraw(f"{done:,} of {count(len(results.rows), 'run')}", err=True)

    say(f"exporting {count(len(results.rows), 'run')} to experiment {there}")
    told = into.export(results, progress)
    if as_json:
        show_json({"exported": told})
        return
    if can_erase():
        say()
    parts = [f"{told.new} new", f"{told.updated} updated", f"{told.complete} there already"]
    say(f"{told.url}: {', '.join(parts)}")
