"""The report of a preflight and its proof as Markdown, to send to a colleague: no secrets, and no ids. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from stoker.model.finding import Finding, failed
from stoker.model.run import Event

_GUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bsig=)[^&\s]+")


def markdown(
    cloud: str, version: str, at: datetime, findings: Sequence[Finding], events: Sequence[Event] = (), home: str = ""
) -> str:
    """`home` is a path of this computer that nobody else needs to see."""
    verdict = "a run could **not** start" if failed(findings) else "runs can start"
    lines = [
        f"# Stoker {version} on `{cloud}`: {verdict}",
        "",
        f"Checked on {at:%Y-%m-%d %H:%M} UTC with `stoker doctor`.",
        "",
        "| check | | found | what to do |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.verdict} | {_cell(one.found)} | {_cell(one.advice)} |" for one in findings),
    ]
    if events:
        lines += ["", "## What happened to the run", "", "| UTC | event | |", "|---|---|---|"]
        lines += [f"| {one.at:%H:%M:%S} | {one.kind} | {_cell(one.text)} |" for one in events]
    text = "\n".join(lines) + "\n"
    return _plain(text.replace(home, "~") if home else text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    text = _TOKEN.sub("<secret>", _MAIL.sub("<mail>", text))
    return _GUID.sub(lambda found: f"{found[1]}-…", text)
