"""`stoker run`: everything from a job file to the outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.command import Command, job_options, json_option
from stoker.cli.commands.start import jobsource
from stoker.cli.commands.start.attend import attend
from stoker.cli.view import words
from stoker.cli.view.failure import INTERRUPTED
from stoker.cli.view.jobtext import variables
from stoker.cli.view.terminal import confirmed, interactive, say
from stoker.client.api.client import Client
from stoker.client.settings import from_environment
from stoker.errors import BadInput
from stoker.model.job.job import Job
from stoker.model.node.orders import Terminal
from stoker.model.run.run import Run
from stoker.model.workspace.store import twin_of

if TYPE_CHECKING:
    from stoker.client.data.moves import DataMove
    from stoker.client.progress import TransferProgress

_PATIENCE_S = 1.0


@click.command(
    cls=Command,
    examples=[
        ("stoker run", "run the job in stoker.yaml"),
        ("stoker run -d --set env.SEED=7 train/stoker.yaml", "override a setting, and detach"),
        ("stoker run --interactive", "use your terminal: input() and breakpoint() work"),
        ("stoker run --on azure --twin", "rehearse it on a simulated cloud"),
    ],
)
@job_options()
@click.option("--twin", is_flag=True, help="Rehearse it on the twin of that cloud, free of charge.")
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@click.option("--interactive", is_flag=True, help="Give the script this terminal, for input() and breakpoint().")
@click.option(
    "--keep-failed", default="", metavar="TIME", help="Keep the node for TIME if the run fails, so you can inspect it."
)
@click.option("-y", "--yes", is_flag=True, help="Upload local data to the store without asking.")
@json_option()
def command(
    file: str, env: tuple[str, ...], sets: tuple[str, ...], on: str, name: str, twin: bool, detach: bool, **asked: Any
) -> int:
    """Run a job and show its output.

    FILE is stoker.yaml unless you name another one; a folder stands for the stoker.yaml in it. For a script or notebook
    without a job file, the settings of `stoker init` are used.

    The script's output appears on stdout exactly as written, and the exit code is that of the script (130 for a
    cancelled run, 75 for a run that is paused because its budget is spent, 125 for a failure of Stoker itself). Ctrl-C
    detaches; the run continues.

    Local data that machines of a cloud cannot read is uploaded to the store first, as a dataset, after you confirm.
    Later runs upload only what has changed.

    With --interactive, on this computer, the script uses this terminal as it would without Stoker: input(),
    breakpoint(), Ctrl-C and the window size work. Its output is also in the run's log. Nothing is retried.
    """
    as_json, keep_failed, yes = bool(asked["as_json"]), asked["keep_failed"], bool(asked["yes"])
    terminal = _own_terminal(detach, as_json, twin) if asked["interactive"] else None
    sets = (*sets, *([f"keep_failed={keep_failed}"] if keep_failed else []), *(["retries=0"] if terminal else []))
    source = jobsource.read(file, sets, on, env)
    upload = Upload(quiet=as_json)
    try:
        with jobsource.located(source), upload, ExitStack() as shown:
            client = _connect(twin_of(source.job.on) if twin else "")
            run = client.submit(
                source.job,
                source.folder,
                name=name,
                progress=upload.progress,
                twin=twin,
                terminal=terminal,
                say=upload.say,
                notice=say,
                agree=lambda moves: _agree(moves, upload, shown, yes=yes, as_json=as_json),
            )
    except KeyboardInterrupt:
        say("interrupted while submitting; check with `stoker ps` whether the run exists")
        return INTERRUPTED
    lines = [header(run.facts, upload.sent_bytes), *came_along(run.facts, source.job)]
    if terminal:
        from stoker.cli.commands.start import foreground  # likewise

        return foreground.attend(client, run, *lines)
    return attend(client, run, *lines, detach=detach, as_json=as_json)


def _agree(
    moves: Sequence[DataMove], upload: Upload, shown: ExitStack, *, yes: bool, as_json: bool
) -> TransferProgress:
    """Asks before data leaves this computer for the first time, or when its size has changed."""
    from stoker.cli.view.transfer import watched  # most runs read their data in place

    new = [one for one in moves if not one.known]
    size_bytes = sum(one.use.size_bytes for one in new)
    for one in new:
        amount = f"{words.count(one.use.files, 'file')}, {words.size(one.use.size_bytes)}"
        upload.say(f"{one.use.name}: {one.use.where} ({amount}) is uploaded as dataset `{one.dataset}`")
    takes = words.duration(sum(one.expected_s for one in new))
    question = f"upload {words.size(size_bytes)} of data to the store, about {takes} at 10 MB/s?"
    if new and not confirmed(question, yes=yes, as_json=as_json):
        raise BadInput("not submitted: the machines cannot read this data on your computer", hint="stoker plan")
    return shown.enter_context(watched(as_json=as_json))


def _own_terminal(detach: bool, as_json: bool, twin: bool) -> Terminal:
    from stoker.cli.commands.start import foreground  # few runs are interactive

    return foreground.own_terminal(detach=detach, as_json=as_json, twin=twin)


def _connect(twin: str) -> Client:
    """`twin` is the provider of a rehearsal, or empty: the twin starts in parallel with the server."""
    if twin:
        from stoker.client.local import rehearsal  # needed only for a rehearsal

        rehearsal.begin(twin, from_environment())
    return Client.connect()


def header(run: Run, sent_bytes: int) -> str:
    """`ants-7 on local, code 3f9c2ab1 (git 1a2b3c4d with changes, 3.1 kB uploaded)`"""
    git = f"git {run.git.commit[:8]}{' with changes' if run.git.dirty else ''}" if run.git else ""
    details = ", ".join(filter(None, [git, f"{words.size(sent_bytes)} uploaded" if sent_bytes else "already uploaded"]))
    return f"{run.name} on {run.place}, code {run.snapshot[:8]} ({details})"


def came_along(run: Run, job: Job) -> list[str]:
    """`variables from your shell: OMP_NUM_THREADS=1`, if the run has variables that its job does not name."""
    added = {name: value for name, value in run.job.env.items() if name not in job.env}
    given = variables({**run.here, **added})
    return [f"variables from your shell{' and env_file' if job.env_file else ''}: {given}"] if given else []


class Upload:
    """Prints progress while a run is submitted, if that takes longer than a moment."""

    def __init__(self, *, quiet: bool) -> None:
        self.sent_bytes = 0
        self._quiet = quiet
        self._next = 0.0
        self._slow = threading.Timer(_PATIENCE_S, say, ("submitting …",))
        self._slow.daemon = True

    def __enter__(self) -> None:
        if not self._quiet:
            self._slow.start()

    def __exit__(self, *_: object) -> None:
        self._slow.cancel()

    def say(self, text: str) -> None:
        """Any other step that takes long."""
        self._slow.cancel()
        if not self._quiet:
            say(text)

    def progress(self, sent_bytes: int, all_bytes: int) -> None:
        self.sent_bytes = sent_bytes
        now = time.monotonic()
        self._next = self._next or now + _PATIENCE_S
        if now > self._next and interactive() and not self._quiet:
            self._next = now + _PATIENCE_S
            say(f"uploaded {words.size(sent_bytes)} of {words.size(all_bytes)}")
