"""`stoker run`, `rerun` and `resume`: everything from a job file to the outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.command import Command, change_options, job_options, json_option, matrix_option, run_argument
from stoker.cli.commands.start import jobsource
from stoker.cli.commands.start.attend import attend
from stoker.cli.commands.sweep import starting
from stoker.cli.view import words
from stoker.cli.view.summary import variables
from stoker.cli.view.terminal import INTERRUPTED, confirmed, interactive, say
from stoker.client.api.client import Client
from stoker.client.settings import from_environment
from stoker.client.submit import jobfile
from stoker.client.submit.sending import job_again
from stoker.errors import BadInput, Conflict
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.orders import Terminal
from stoker.model.run.run import Run, RunState
from stoker.model.workspace.store import twin_of

if TYPE_CHECKING:
    from stoker.client.data.datasets import DataMove
    from stoker.client.progress import TransferProgress

_PATIENCE_S = 1.0


@click.command(
    cls=Command,
    examples=[
        ("stoker run", "run the job in stoker.yaml"),
        ("stoker run -d --set env.SEED=7 train/stoker.yaml", "override a setting, and detach"),
        ("stoker run --matrix lr=1e-3,1e-2 --matrix seed=1..5", "run ten trials, one for each combination"),
        ("stoker run --on azure --twin", "rehearse it on a simulated cloud"),
    ],
)
@job_options()
@matrix_option()
@click.option("--twin", is_flag=True, help="Rehearse it on the twin of that cloud, free of charge.")
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@click.option("--interactive", is_flag=True, help="Give the script this terminal, for input() and breakpoint().")
@click.option(
    "--keep-failed", default="", metavar="TIME", help="Keep the node for TIME if the run fails, so you can inspect it."
)
@click.option("-y", "--yes", is_flag=True, help="Upload local data, and submit thousands of trials, without asking.")
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

    A job with a `matrix` is a sweep: all of its trials are submitted together, NAME is the sweep's, and the exit code
    is 0 if all of them succeed.

    With --interactive, on this computer, the script uses this terminal as it would without Stoker: input(),
    breakpoint(), Ctrl-C and the window size work. Its output is also in the run's log. Nothing is retried.
    """
    as_json, keep_failed, yes = bool(asked["as_json"]), asked["keep_failed"], bool(asked["yes"])
    terminal = _own_terminal(detach, as_json, twin) if asked["interactive"] else None
    sets = (*sets, *starting.settings(asked["matrix"]))
    sets = (*sets, *([f"keep_failed={keep_failed}"] if keep_failed else []), *(["retries=0"] if terminal else []))
    source = jobsource.read(file, sets, on, env)
    upload = Upload(quiet=as_json)
    try:
        with jobsource.located(source), upload, ExitStack() as shown:
            job = replace(source.job, on=twin_of(source.job.on)) if twin else source.job
            if job.matrix:
                starting.agree(job, yes=yes, as_json=as_json)
            client = _connect(job.on if twin else "")
            given: Any = {
                "name": name,
                "progress": upload.progress,
                "say": upload.say,
                "notice": say,
                "agree": lambda moves: _agree(moves, upload, shown, yes=yes, as_json=as_json),
            }
            if job.matrix:
                sweep = client.sweep(job, source.folder, **given)
                upload.end()
                return starting.attend(sweep, detach=detach, as_json=as_json)
            run = client.submit(job, source.folder, terminal=terminal, **given)
    except KeyboardInterrupt:
        say("interrupted while submitting; check with `stoker ps` whether the run exists")
        return INTERRUPTED
    lines = [header(run.facts, upload.sent_bytes), *came_along(run.facts, source.job)]
    if terminal:
        from stoker.cli.commands.start.attend import attend_in_foreground  # likewise

        return attend_in_foreground(client, run, *lines)
    return attend(client, run, *lines, detach=detach, as_json=as_json)


def _agree(
    moves: Sequence[DataMove], upload: Upload, shown: ExitStack, *, yes: bool, as_json: bool
) -> TransferProgress:
    """Asks before data leaves this computer for the first time, or when its size has changed."""
    from stoker.cli.view.words import watched  # most runs read their data in place

    new = [one for one in moves if not one.known]
    size_bytes = sum(one.use.size_bytes for one in new)
    for one in new:
        amount = f"{words.count(one.use.files, 'file')}, {words.size_text(one.use.size_bytes)}"
        upload.say(f"{one.use.name}: {one.use.where} ({amount}) is uploaded as dataset `{one.dataset}`")
    takes = words.duration(sum(one.expected_s for one in new))
    question = f"upload {words.size_text(size_bytes)} of data to the store, about {takes} at 10 MB/s?"
    if new and not confirmed(question, yes=yes, as_json=as_json):
        raise BadInput(
            "not submitted: the machines cannot read this data on your computer",
            hint="stoker plan",
            cause=Cause.DATA_UNREACHABLE,
        )
    return shown.enter_context(watched(as_json=as_json))


def _own_terminal(detach: bool, as_json: bool, twin: bool) -> Terminal:
    from stoker.cli.commands.start.attend import own_terminal  # few runs are interactive

    return own_terminal(detach=detach, as_json=as_json, twin=twin)


def _connect(twin: str) -> Client:
    """`twin` is the provider of a rehearsal, or empty: the twin starts in parallel with the server."""
    if twin:
        from stoker.client.local import rehearsal  # needed only for a rehearsal

        rehearsal.begin(twin, from_environment())
    return Client.connect()


def header(run: Run, sent_bytes: int) -> str:
    """`ants-7 on local, code 3f9c2ab1 (git 1a2b3c4d with changes, 3.1 kB uploaded)`"""
    git = f"git {run.git.commit[:8]}{' with changes' if run.git.dirty else ''}" if run.git else ""
    details = ", ".join(
        filter(None, [git, f"{words.size_text(sent_bytes)} uploaded" if sent_bytes else "already uploaded"])
    )
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
        self.end()

    def end(self) -> None:
        """Nothing more is uploaded."""
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
            say(f"uploaded {words.size_text(sent_bytes)} of {words.size_text(all_bytes)}")


@click.command(
    cls=Command,
    examples=[
        ("stoker resume ants-7", "resume ants-7 from its last checkpoint"),
        ("stoker resume ants-7 --set retries=3 --on azure", "resume it in another place, with other settings"),
        ("stoker resume ants-7 --set budget=10", "resume a run whose budget is spent"),
    ],
)
@run_argument()
@change_options()
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@json_option()
def resume(name: str, sets: tuple[str, ...], on: str, called: str, detach: bool, as_json: bool) -> int:
    """Resume a failed or cancelled run from its last checkpoint.

    A run that has ended does not change: a new run continues it, `ants-7-r2` for `ants-7`, with the same code, data and
    Python, the checkpoint and outputs of the old run, and the rest of its budget. `--set` overrides fields of the job.
    A run that is paused because its budget is spent resumes itself: raise its budget with `--set budget=USD`. Without
    RUN: the newest.
    """
    client = Client.connect()
    old = client.run(name)
    changes = [*sets, f"on={on}"] if on else [*sets]
    if old.state is RunState.PAUSED:
        _check_paused(old.name, changes, called)
    job = jobfile.changed(client.job_to_resume(old), changes)
    run = client.resume(old.name, job, name=called)
    step = run.facts.start.step if run.facts.start else None
    at = f" at step {step:g}" if step is not None else ""
    header = f"{run.name} on {run.facts.place}, resumes {old.name} from its last checkpoint{at}"
    return attend(client, run, header, detach=detach, as_json=as_json)


def _check_paused(name: str, changes: list[str], called: str) -> None:
    other = [one for one in changes if one.partition("=")[0].strip() != "budget"]
    if other or called or not changes:
        what = f"`{other[0]}` cannot be changed" if other else "it requires a larger budget"
        raise Conflict(
            f"`{name}` is paused because its budget is spent: {what}",
            hint=f"raise its budget: `stoker resume {name} --set budget=USD`; to change the rest, cancel it first",
            cause=Cause.RUN_PAUSED,
        )


@click.command(
    cls=Command,
    examples=[
        ("stoker rerun ants-7", "run ants-7 again and show its output"),
        ("stoker rerun -d --set env.SEED=8", "run the newest run again with another seed, in the background"),
        ("stoker rerun ants-7 --from-checkpoint --set env.EPOCHS=50", "continue training the model of ants-7"),
        ("stoker rerun ants-7 --exact-environment", "with exactly the packages that ants-7 had"),
    ],
)
@run_argument()
@change_options()
@click.option("--from-checkpoint", is_flag=True, help="Start from the last checkpoint of RUN instead of from scratch.")
@click.option(
    "--exact-environment", is_flag=True, help="With the packages and the Python that the node of RUN really had."
)
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@json_option()
def rerun(
    name: str,
    sets: tuple[str, ...],
    on: str,
    called: str,
    from_checkpoint: bool,
    exact_environment: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Run an earlier run again, with the same code and Python.

    Uses the code, job, data and Python of the earlier run, whatever has changed in your folder since; `--set` overrides
    fields of the job. Secrets are read from your environment again. Without RUN: the newest.
    """
    client = Client.connect()
    old = client.run(name)
    job = jobfile.changed(job_again(old.facts), [*sets, f"on={on}"] if on else sets)
    run = client.rerun(old.name, job, from_checkpoint=from_checkpoint, exact_environment=exact_environment, name=called)
    start = ", from its last checkpoint" if run.facts.start else ""
    header = f"{run.name} on {run.facts.place}, a rerun of {run.facts.rerun_of}{start}"
    return attend(client, run, header, detach=detach, as_json=as_json)
