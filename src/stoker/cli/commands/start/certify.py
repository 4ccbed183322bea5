"""`stoker certify`: proves that a script survives evictions exactly."""

from __future__ import annotations

import random
from typing import Any

import click

from stoker.cli.command import Command, json_option
from stoker.cli.commands.start import jobsource
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import INTERRUPTED, paint_data, say, show, show_json
from stoker.cli.view.words import Column, pairs, table
from stoker.client.api.client import Client
from stoker.client.certify.certification import Certification
from stoker.client.certify.evidence import Evidence, Trace
from stoker.client.certify.replay import Resume, fleeting, lasting, whole
from stoker.client.certify.verdict import Grade, Verdict, all_resumes, compared_files, judge, steps
from stoker.errors import BadInput

_STYLES = {Grade.EXACT: "good", Grade.CLOSE: "warn", Grade.INEXACT: "warn", Grade.LOSSY: "warn", Grade.BROKEN: "error"}


@click.command(
    cls=Command,
    examples=[
        ("stoker certify", "certify the job in stoker.yaml, with five evictions"),
        ("stoker certify --evictions 20 --seed 7", "more evictions, at the same times on every run"),
        ("stoker certify --ranks 4", "certify distributed training with four processes"),
        ("stoker certify --ranks 4 --nodes 2", "the same on two nodes; ranks and nodes are killed"),
    ],
)
@click.argument("file", default="stoker.yaml", type=click.Path())
@click.option(
    "--evictions", default=5, type=click.IntRange(1, 100), metavar="N", help="Number of evictions [default: 5]."
)
@click.option("--ranks", default=None, type=click.IntRange(1, 64), metavar="N", help="Run it with N processes in all.")
@click.option(
    "--nodes", default=None, type=click.IntRange(1, 64), metavar="N", help="Run it on N nodes of this computer."
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a field of the job; repeatable.")
@click.option("--seed", default=None, type=int, metavar="N", help="Seed of the eviction times, to repeat them.")
@json_option()
def command(
    file: str,
    evictions: int,
    ranks: int | None,
    nodes: int | None,
    sets: tuple[str, ...],
    seed: int | None,
    as_json: bool,
) -> int:
    """Prove that a script survives evictions exactly.

    Runs the job on this computer, once undisturbed and then with evictions at random times, with and without notice.
    With several ranks or nodes, evictions without notice kill one rank or one node at a random step.
    Compares output files, metrics and steps, and prints one of:

    \b
      exact      everything is the same, bit for bit
      close      the same steps, with numbers that differ slightly
      inexact    it resumes, but not exactly: the numbers differ more than slightly
      lossy      the result is right, but much work was repeated
      broken     it failed, did not finish, or finished with other results
      undecided  nothing can be proved, for example because it is not deterministic

    with the reason and the lines to add. The exit code is 0 for exact and 1 for anything else. Outputs of these runs
    are not downloaded to your folder; the runs are deleted if the result is exact, and kept for inspection otherwise.
    """
    source = jobsource.read(file, (*sets, *_with(ranks, nodes)), "")
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    certification = Certification(Client.connect(), source.job, source.folder, (lambda _: None) if as_json else say)
    try:
        with jobsource.located(source):
            evidence = certification.carry_out(evictions, seed)
    except KeyboardInterrupt:
        say("interrupted: cancelling the current run")
        return INTERRUPTED
    verdict = judge(evidence)
    kept = [] if verdict.grade is Grade.EXACT else [run.name for run in certification.runs]
    if not kept:
        certification.remove()
    if as_json:
        show_json(facts(evidence, verdict, kept, seed))
    else:
        for line in report(evidence, verdict, kept, terminal.width()):
            show(line)
    return 0 if verdict.grade is Grade.EXACT else 1


def _with(ranks: int | None, nodes: int | None) -> list[str]:
    """All nodes have the same number of ranks."""
    if ranks is None:
        return [] if nodes is None else [f"nodes={nodes}"]
    nodes = nodes or 1
    if ranks % nodes:
        raise BadInput(f"{ranks} ranks cannot be divided evenly among {nodes} nodes", hint=f"--ranks {nodes * 2}")
    return [f"nodes={nodes}", f"processes={ranks // nodes}"]


def report(evidence: Evidence, verdict: Verdict, kept: list[str], width: int) -> list[str]:
    """The report for people: the verdict, the reason, the evidence, and what to do."""
    lines = [f"{paint_data(f'{verdict.grade}:', _STYLES.get(verdict.grade, 'strong'))} {verdict.reason}"]
    lines += [f"  {line}" for line in verdict.details]
    lines += ["", *pairs(_seen(evidence), paint_data)]
    if resumes := all_resumes(evidence):
        lines += ["", *(f"  {line}" for line in _evictions(resumes, width - 2))]
    if verdict.advice:
        lines += ["", f"to do: {verdict.advice}", *(f"    {line}" for line in verdict.lines)]
    return [*lines, "", *_next(verdict, kept)]


def facts(evidence: Evidence, verdict: Verdict, kept: list[str], seed: int) -> dict[str, Any]:
    """The report for programs: the verdict with its evidence, without the individual points."""
    return {
        "verdict": verdict.grade,
        "reason": verdict.reason,
        "details": verdict.details,
        "advice": verdict.advice,
        "lines": verdict.lines,
        "evictions": all_resumes(evidence),
        "runs": [_run(trace) for trace in _traces(evidence)],
        "steps": steps(evidence.undisturbed),
        "metrics": lasting(whole(evidence.undisturbed)),
        "files": compared_files(evidence),
        "files_that_differ": evidence.files,
        "files_that_always_differ": [change.path for change in evidence.control_files],
        "code": evidence.code,
        "kept": kept,
        "seed": seed,
    }


def _run(trace: Trace) -> dict[str, Any]:
    names = ("run", "succeeded", "timed_out", "took_s", "reason", "exit_code", "evictions")
    return {name: getattr(trace, name) for name in names} | {"attempts": len(trace.attempts), "files": trace.files}


def _traces(evidence: Evidence) -> list[Trace]:
    return [evidence.undisturbed, *evidence.disturbed, *filter(None, [evidence.control])]


def _seen(evidence: Evidence) -> list[tuple[str, str]]:
    plain = evidence.undisturbed
    metrics = whole(plain)
    compared = [
        words.count(len(compared_files(evidence)), "output file"),
        f"{words.count(len(lasting(metrics)), 'metric')} at {words.count(steps(plain), 'step')}",
    ]
    unsteady = [*fleeting(metrics), *(change.path for change in evidence.control_files)]
    rows = [("undisturbed", _line(plain))]
    rows += [(f"disturbed {number}", _line(trace)) for number, trace in enumerate(evidence.disturbed, 1)]
    if evidence.control:
        rows.append(("repeated", _line(evidence.control)))
    compared_text = ", ".join(compared) if evidence.disturbed else ""
    return [*rows, ("compared", compared_text), ("not compared", ", ".join(unsteady))]


def _line(trace: Trace) -> str:
    ended = "" if trace.succeeded else ", did not finish" if trace.timed_out else f", failed: {trace.reason}"
    evicted = f", {words.count(trace.evictions, 'eviction')}" if trace.evictions else ""
    return f"{trace.run}, {words.duration(trace.took_s)}{evicted}{ended}"


def _evictions(resumes: list[Resume], width: int) -> list[str]:
    columns = (
        Column("EVICTED", least=12),
        Column("NOTICE", right=True),
        Column("AT STEP", right=True),
        Column("CHECKPOINT"),
        Column("RESUMED AT", right=True),
        Column("REPEATED", right=True),
    )
    rows = [
        [
            f"{one.run} #{one.attempt}" + (f" ({one.killed})" if one.killed else ""),
            f"{one.notice_s:g} s" if one.notice_s else "none",
            _step(one.reached),
            ("none yet" if not one.restored else f"of step {one.kept:g}" if one.kept is not None else "restored"),
            _step(one.went_on),
            str(one.repeated),
        ]
        for one in resumes
    ]
    return table(columns, rows, width, paint_data)


def _step(step: float | None) -> str:
    return "-" if step is None else words.number(step)


def _next(verdict: Verdict, kept: list[str]) -> list[str]:
    if verdict.grade is Grade.EXACT:
        return ["next: stoker run"]
    return [
        f"kept for inspection: {', '.join(kept)}",
        f"next: change the script and run `stoker certify` again; delete these runs: `stoker rm {' '.join(kept)}`",
    ]
