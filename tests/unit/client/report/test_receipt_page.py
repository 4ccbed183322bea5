"""The receipt as a page: it is self-contained, escapes its input, and its bar adds up."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from html.parser import HTMLParser
from typing import Any

import pytest
from stories import Told, at, evicted, story

from stoker.client.report.pages import page
from stoker.engine.money.receipt import receipt
from stoker.model.run.receipt import Receipt
from stoker.model.run.run import RunState


def clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"


@pytest.fixture
def stormy() -> Receipt:
    run = story(evicted(step=410, kept_step=400), Told(asked=200, place="westus2"), budget=Decimal(5))
    return replace(receipt(run, at(1000)), left=())


class Balance(HTMLParser):
    """Which tags are open, and everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(stormy: Receipt) -> None:
    text = page(stormy, clock, at(2000))
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.fetched == []
    assert "@import" not in text
    assert "url(" not in text


def test_the_widths_of_the_bar_sum_to_the_whole(stormy: Receipt) -> None:
    widths = re.findall(r"flex:([\d.]+) 0 0", page(stormy, clock, at(2000)))
    assert len(widths) == 6, "nothing was spent on checkpoints"
    assert sum(map(float, widths)) == pytest.approx(1.0, abs=1e-4)


def test_the_figures_are_those_of_the_receipt(stormy: Receipt) -> None:
    text = page(stormy, clock, at(2000))
    assert '<p class="sum">$0.3000 <small>5m 00s of machines</small></p>' in text
    assert "$4.70 of the budget of $5.00 left" in text
    assert "attempt 1 evicted 14:02:25 with 30 s notice: 10 steps, 20 s and $0.0200 of work repeated" in text
    assert "still running: nothing, $0.00/h" in text
    assert 'aria-label="useful 60 %, provisioning 27 %' in text


HOSTILE = """<script>alert(1)</script>" onload='x' <!-- &lt;"""


def poisoned(value: Any) -> Any:
    """The same with hostile text everywhere."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: poisoned(getattr(value, one.name)) for one in fields(value)})
    if isinstance(value, tuple):
        return tuple(map(poisoned, value))
    return HOSTILE if isinstance(value, str) and not isinstance(value, StrEnum) else value


def test_whatever_a_receipt_says_is_text_and_nothing_else(stormy: Receipt) -> None:
    evil = poisoned(replace(stormy, left=("a disk",), notes=("a note",)))
    text = page(evil, clock, at(2000))
    assert "<script" not in text and "<!--" not in text
    assert text.count("&lt;script&gt;") >= 6, "the title, the head, the machines, what was left and the note"
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not balance.handlers


def test_a_run_that_was_free_has_a_bar_of_its_minutes() -> None:
    text = page(receipt(story(Told(price=Decimal(0), idle=0)), at(2000)), clock, at(2000))
    assert "useful 69 %" in text


def test_a_run_without_attempts_has_a_page() -> None:
    text = page(receipt(story(state=RunState.QUEUED), at(5)), clock, at(5))
    assert "$0.00" in text
