"""`stoker run`: the whole way from a job file to the outputs."""

from __future__ import annotations

import threading
import time

import click

from stoker.cli import jobsource, words
from stoker.cli.attend import attend
from stoker.cli.command import Command, job_options, json_option
from stoker.cli.failure import INTERRUPTED
from stoker.cli.terminal import interactive, say
from stoker.client.client import Client
from stoker.client.settings import from_environment
from stoker.model.rehearsal import twin_of
from stoker.model.run import Run as Facts

_PATIENCE_S = 1.0


@click.command(
    cls=Command,
    examples=[
        ("stoker run", "run the job in stoker.yaml"),
        ("stoker run -d --set env.SEED=7 train/stoker.yaml", "change another one on the way, and return at once"),
        ("stoker run --on azure --twin", "rehearse it in a cloud on this computer"),
    ],
)
@job_options()
@click.option("--twin", is_flag=True, help="Rehearse it on the twin of that cloud: the same job, for nothing.")
@click.option("-d", "--detach", is_flag=True, help="Submit, print the run's name, and return at once.")
@click.option(
    "--keep-failed", default="", metavar="TIME", help="If it fails, leave its node in place for so long, to look into."
)
@json_option()
def command(
    file: str, sets: tuple[str, ...], on: str, name: str, twin: bool, detach: bool, keep_failed: str, as_json: bool
) -> int:
    """Run a job and show its output.

    FILE is stoker.yaml unless another is named; a folder stands for the stoker.yaml in it.

    What the script prints comes out on stdout as it was written, and the exit code is the script's own (130 for a
    cancelled run, 75 for one that is paused because its budget is spent, 125 for trouble of Stoker's own). Ctrl-C
    stops the watching, not the run.
    """
    source = jobsource.read(file, (*sets, f"keep_failed={keep_failed}") if keep_failed else sets, on)
    upload = Upload(quiet=as_json)
    try:
        with jobsource.located(source), upload:
            client = _connect(twin_of(source.job.on) if twin else "")
            run = client.submit(
                source.job, source.folder, name=name, progress=upload.progress, twin=twin, say=upload.say, notice=say
            )
    except KeyboardInterrupt:
        say("interrupted while submitting; `stoker ps` shows whether there is a run")
        return INTERRUPTED
    return attend(client, run, header(run.facts, upload.sent_bytes), detach=detach, as_json=as_json)


def _connect(twin: str) -> Client:
    """`twin` is the provider of a rehearsal, empty where there is none: the twin is started while the server is."""
    if twin:
        from stoker.client import rehearsal  # a run in the real world has no use for it

        rehearsal.begin(twin, from_environment())
    return Client.connect()


def header(run: Facts, sent_bytes: int) -> str:
    """`ants-7 on local, code 3f9c2ab1 (git 1a2b3c4d with changes, 3.1 kB sent)`"""
    git = f"git {run.git.commit[:8]}{' with changes' if run.git.dirty else ''}" if run.git else ""
    details = ", ".join(filter(None, [git, f"{words.size(sent_bytes)} sent" if sent_bytes else "nothing new to send"]))
    return f"{run.name} on {run.job.on}, code {run.snapshot[:8]} ({details})"


class Upload:
    """Says what is going on while a run is submitted, where that takes longer than a moment."""

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
        """Something else that takes long."""
        self._slow.cancel()
        if not self._quiet:
            say(text)

    def progress(self, sent_bytes: int, all_bytes: int) -> None:
        self.sent_bytes = sent_bytes
        now = time.monotonic()
        self._next = self._next or now + _PATIENCE_S
        if now > self._next and interactive() and not self._quiet:
            self._next = now + _PATIENCE_S
            say(f"sent {words.size(sent_bytes)} of {words.size(all_bytes)}")
