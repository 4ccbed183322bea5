"""`stoker doctor`: is this computer ready?"""

from __future__ import annotations

import click

from stoker.cli.checks import CHECKS, Finding, Verdict
from stoker.cli.command import Command, json_option
from stoker.cli.terminal import paint_data, show, show_json
from stoker.client.settings import from_environment

_STYLES = {Verdict.OK: "good", Verdict.WARN: "warn", Verdict.FAIL: "error"}


@click.command(
    cls=Command,
    examples=[
        ("stoker doctor", "check everything"),
        ("stoker doctor --json", "the same, for a program or a bug report"),
    ],
)
@json_option()
def command(as_json: bool) -> int:
    """Check that this computer is ready to run jobs.

    Each line is ok, warn or fail, with what to do about it. The exit code is 1 where something fails.
    """
    settings = from_environment()
    findings = [check(settings) for check in CHECKS]
    failed = any(one.verdict is Verdict.FAIL for one in findings)
    if as_json:
        show_json({"ok": not failed, "findings": findings})
        return int(failed)
    widest = max(len(one.name) for one in findings)
    for one in findings:
        show(_line(one, widest))
    return int(failed)


def _line(one: Finding, widest: int) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"
