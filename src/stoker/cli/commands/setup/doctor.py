"""`stoker doctor`: checks this computer, whether a run in a cloud would start, and whether it survives an eviction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

from stoker import __version__
from stoker.cli.command import Command, json_option
from stoker.cli.commands.setup.checks import CHECKS
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import BadInput
from stoker.model.run.run import Event
from stoker.model.workspace.finding import CheckResult, Finding, failed

_STYLES = {CheckResult.OK: "good", CheckResult.WARN: "warn", CheckResult.FAIL: "error", CheckResult.SKIP: "faint"}
_WIDEST = 26  # of a name: `deployment southcentralus`
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    cls=Command,
    examples=[
        ("stoker doctor", "check this computer"),
        ("stoker doctor --cloud azure", "also check whether a run in Azure would start; free of charge"),
        (
            "stoker doctor --cloud azure --spend 0.05 --report azure.md",
            "prove it with a real eviction, for at most 5 cents",
        ),
        ("stoker doctor --json", "the same, for a program or a bug report"),
    ],
)
@click.option("--cloud", metavar="NAME", help="Also check a cloud account: azure, or azure-twin for its twin.")
@click.option(
    "--spend", metavar="USD", help="Then test a run on a spot machine that is evicted, for at most this much."
)
@click.option("--report", type=_FILE, metavar="FILE", help="Write a Markdown report to FILE, without secrets.")
@click.option("--record", type=_FILE, metavar="FILE", help="Write all requests and responses to FILE, without secrets.")
@json_option()
def command(cloud: str | None, spend: str | None, report: Path | None, record: Path | None, as_json: bool) -> int:
    """Check that this computer or a cloud is ready.

    Each line is ok, warn or fail, with what to do about it. The exit code is 1 if something fails: a run could not
    start then.

    With --cloud, checks the account: login, clock, subscription, services, and in each region sizes, images, quotas,
    rights and policies. Azure validates the exact deployment that a run would create, in an empty resource group that
    is deleted afterwards. Nothing is started or billed. The machine is that of the stoker.yaml in this folder, or the
    cheapest.

    With --spend, if nothing has failed, a tiny run starts on the cheapest spot machine. The cloud evicts that machine
    on request, the run resumes on another one and finishes, and everything is removed. The amount is the run's budget
    and is never exceeded. This takes some minutes; Azure may take 30 to evict a machine.

    With --record, every request to the cloud and its response is a JSON line in FILE, without secrets: tokens, keys and
    signatures are removed, and ids replaced. Attach it to a bug report: it can be replayed as a test.
    """
    if not cloud and (spend or report or record):
        raise BadInput("--spend, --report and --record require --cloud", hint="--cloud azure")
    settings, amount = from_environment(), _amount(spend)
    findings: list[Finding] = []
    events: list[Event] = []
    with _recorded(cloud, settings, record):
        for one in _findings(settings, cloud, amount, findings, events):
            findings.append(one)
            if not as_json:
                show(finding_line(one))
    if record:
        say(f"wrote all requests to the cloud and their responses to {record}, without secrets")
    if report and cloud:
        _write(report, cloud, findings, events, settings)
    if as_json:
        show_json({"ok": not failed(findings), "findings": findings, "events": events})
    return int(failed(findings))


def _amount(spend: str | None) -> Decimal | None:
    if spend is None:
        return None
    try:
        amount = Decimal(spend.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadInput(f"--spend is `{spend}`, expected a number of dollars", hint="--spend 0.05") from None
    if not amount.is_finite() or amount <= 0:
        raise BadInput(f"--spend is {spend}, expected more than 0 dollars", hint="--spend 0.05")
    return amount


def _findings(
    settings: ClientSettings, cloud: str | None, spend: Decimal | None, before: list[Finding], events: list[Event]
) -> Iterator[Finding]:
    """`before` grows with what is yielded: nothing is spent if a check has failed."""
    yield from (check(settings) for check in CHECKS)
    if not cloud:
        return
    from stoker.client.local import preflight  # needed only with a cloud

    needs, told_by = preflight.needs_of(Path.cwd())
    if told_by:
        say(f"machines as requested by {told_by}")
    yield from preflight.findings(cloud, settings, needs, say)
    if spend is None:
        return
    if failed(before):
        yield Finding("proof", CheckResult.SKIP, "nothing was spent, because a check failed")
        return
    proof = preflight.proof(cloud, settings, spend, say)
    yield from proof.findings()
    events += proof.events


def _recorded(cloud: str | None, settings: ClientSettings, record: Path | None) -> AbstractContextManager[None]:
    if not cloud or not record:
        return nullcontext()
    from stoker.client.local import preflight  # as above

    return preflight.recorded(cloud, settings, record)


def _write(file: Path, cloud: str, findings: list[Finding], events: list[Event], settings: ClientSettings) -> None:
    from stoker.client.local.preflight import markdown  # as above

    text = markdown(cloud, __version__, datetime.now(UTC), findings, events, str(settings.home.root))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} is not writable: {error.strerror}", hint="choose another file with --report") from error
    say(f"wrote the report to {file}, without secrets")


def finding_line(one: Finding, *, widest: int = _WIDEST) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"
