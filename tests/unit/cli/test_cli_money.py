"""Money in the terminal: the figures add up, show the age of their prices, and are readable without colours."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from stories import START, Told, at, evicted, story

from stoker.cli.commands.watch import cost
from stoker.cli.view import terminal
from stoker.cli.view.portrait import portrait
from stoker.cli.view.printer import LogSource, TextPrinter
from stoker.cli.view.summary import offer_lines, receipt_lines, short
from stoker.cli.view.words import meter_line
from stoker.client.report.pages import figures, left_words
from stoker.client.report.spelling import how_old, money, step, usd
from stoker.engine.money.forecast import forecast
from stoker.engine.money.receipt import receipt
from stoker.engine.money.spending import costs
from stoker.model.job.job import Job
from stoker.model.node import Offer
from stoker.model.run.money import By, Spell
from stoker.model.run.receipt import Receipt
from stoker.model.run.run import RunState


def plain(text: str, _style: str) -> str:
    return text


def shown(of: Receipt, width: int = 100) -> str:
    return "\n".join(receipt_lines(of, at(2000), width, plain))


@pytest.fixture
def stormy() -> Receipt:
    run = story(evicted(step=410, kept_step=400), Told(asked=200, place="westus2"), budget=Decimal(5))
    return replace(receipt(run, at(1000)), left=(), priced_at=START)


def seconds_of(text: str) -> int:
    parts = [int(part) for part in text.split(":")]
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))


def test_a_receipt_in_the_terminal_adds_up(stormy: Receipt) -> None:
    rows = re.findall(r"^ {2}\S? ?\s*([a-z-]+) +([\d:]+) +(\d+) % +\$([\d.]+)$", shown(stormy), re.MULTILINE)
    *parts, whole = rows
    assert [name for name, *_ in parts] == [
        "useful",
        "provisioning",
        "set-up",
        "data",
        "checkpoint",
        "redone",
        "idle",
    ]
    assert whole[0] == "whole"
    assert sum(seconds_of(time) for _, time, _, _ in parts) == seconds_of(whole[1]) == 300
    assert sum(int(share) for _, _, share, _ in parts) == int(whole[2]) == 100
    assert sum(Decimal(amount) for *_, amount in parts) == Decimal(whole[3]) == Decimal("0.3000")


def test_a_receipt_tells_the_rest_in_sentences(stormy: Receipt) -> None:
    text = shown(stormy)
    assert text.startswith("ants-1 succeeded: $0.3000 for 5m 00s of machines")
    assert re.search(r"attempt 1 evicted .*:25 with 30 s notice: 10 steps, 20 s and \$0.0200 of work repeated", text)
    assert "the same work on demand without evictions: $1.15 (you saved 74 %); prices fetched 33 minutes ago" in text
    assert "$4.70 of the budget of $5.00 left" in text
    assert "still running: nothing, $0.00/h" in text


def test_every_part_of_the_bar_has_a_sign_of_its_own(stormy: Receipt) -> None:
    bar = shown(stormy).splitlines()[2].strip()
    assert len(bar) == 60
    assert bar.count("█") == 36, "180 of 300 seconds"
    assert bar.count("╳") == 4


def test_a_narrow_terminal_is_enough(stormy: Receipt) -> None:
    assert all(len(line) <= 60 for line in shown(stormy, 60).splitlines()[:14])


def test_a_run_without_attempts_has_a_receipt_of_one_line() -> None:
    made = receipt(story(state=RunState.QUEUED), at(5))
    assert shown(made) == "ants-1 queued: 0.0 s of machines, which cost nothing"


def test_a_run_that_was_free_has_no_column_for_costs() -> None:
    text = shown(receipt(story(Told(price=Decimal(0), on_demand=None)), at(1000)))
    assert text.startswith("ants-1 succeeded: 2m 25s of one machine, which cost nothing")
    assert "$" not in text
    assert "COST" not in text


def test_the_end_of_a_run_has_a_line(stormy: Receipt) -> None:
    assert short(stormy) == (
        "$0.3000 for 5m 00s of machines, 60 % useful, $0.0200 for repeated work,"
        " the same work on demand without evictions: $1.15 (you saved 74 %)"
    )


def test_leftovers_are_reported_and_so_is_an_unreachable_provider(stormy: Receipt) -> None:
    assert left_words(replace(stormy, left=("vm/a", "disk/b"), usd_per_hour=Decimal(2))) == (
        "still running: 2 resources, $2.00/h"
    )
    assert left_words(replace(stormy, left=None)) == "could not check what is still running"


@pytest.mark.parametrize("price", ["0.000001", "0.0173", "3.60", "98.32"])
def test_whatever_the_price_shown_figures_add_up(price: str) -> None:
    made = receipt(story(evicted(price=Decimal(price), work=333.3), Told(asked=999, price=Decimal(price))), at(5000))
    parts, whole = figures(made)
    amounts = [Decimal(one.dollars.lstrip("$").replace(",", "")) for one in parts]
    assert sum(amounts) == Decimal(whole.dollars.lstrip("$").replace(",", ""))
    assert sum(seconds_of(one.time) for one in parts) == seconds_of(whole.time)


def offers(job: dict[str, Any], earlier: bool = True, **more: Any) -> str:
    spot = Offer("c", "D2", "eastus", Decimal("0.0443"), spot=True, on_demand_usd_per_hour=Decimal("0.123"), **more)
    full = Offer("c", "D2", "eastus", Decimal("0.123"), on_demand_usd_per_hour=Decimal("0.123"), **more)
    described = Job(name="ants", run="python train.py", on="cloud", **job)
    made = forecast(described, [spot, full], [story(Told(work=1000))] if earlier else [], at(5000))
    return "\n".join(offer_lines(made, at(5000), 140, plain))


def test_offers_are_shown_with_what_to_expect_and_how_old_their_prices_are() -> None:
    text = offers({}, priced_at=datetime(2025, 1, 1, tzinfo=UTC))
    first = next(line for line in text.splitlines() if "→" in line)
    assert re.fullmatch(r"  → +D2 +eastus +spot +\$0\.0443 +64 % +<0\.1 +\S+ \S+ +\$0\.0\d+", first)
    assert "prices of 2025-01-01, 14 months old" in text
    assert "time and cost are estimated from 1 earlier run of this experiment, which had 0 evictions" in text
    assert re.search(
        r"cheapest choice  spot D2 in eastus at \$0.0443/h, \d+m \d+s, \$0.0\d+: the cheapest choice", text
    )


def test_without_earlier_runs_nothing_is_made_up() -> None:
    text = offers({"budget": "$1"}, earlier=False)
    assert "TIME" not in text
    assert "COST" not in text
    assert "the budget lasts 22h 34m" in text
    assert "runtime unknown until one run has succeeded" in text


def test_that_there_is_no_way_is_reported_with_the_reason() -> None:
    text = offers({"budget": "$0.001"})
    assert "cheapest choice  none: the cheapest costs $0.01" in text
    assert "the budget is $0.0010" in text


def test_another_currency_goes_by_its_name() -> None:
    assert "0.0883 EUR" in offers({}, quoted=Decimal("0.08832"), currency="EUR")
    assert money(Decimal("1234.5"), "JPY") == "1,234.50 JPY"
    assert money(Decimal("1234.5"), "USD") == "$1,234.50"


def test_what_costs_nothing_has_no_offers() -> None:
    free = Offer("local", "this computer", "here", Decimal(0))
    made = forecast(Job(name="ants", run="x"), [free], [], at(0))
    assert offer_lines(made, at(0), 100, plain) == []


def test_costs_are_a_table_whose_rows_add_up() -> None:
    runs = [
        replace(story(Told()), id="a" * 12, person="anna"),
        replace(story(Told(work=333.333)), id="b" * 12),
    ]
    lines = cost.lines(costs(runs, By.PERSON, at(5000), zone=UTC), 100)
    amounts = [Decimal(line.rpartition("$")[2]) for line in lines[1:]]
    assert sum(amounts[:-1]) == amounts[-1] == Decimal("0.5333")
    assert lines[1].startswith("(unknown)")
    assert lines[-1].startswith("total")


def test_no_costs_are_no_table() -> None:
    assert cost.lines(costs([], By.DAY, at(0), zone=UTC), 80) == []


def test_the_meter_says_what_was_spent_what_an_hour_costs_and_what_is_left() -> None:
    spells = (Spell("a-1", at(0), at(10), Decimal("3.60")), Spell("a-2", at(10), None, Decimal("36.00")))
    run = story(state=RunState.RUNNING, spells=spells, budget=Decimal("1.00"))
    assert meter_line(run, at(20)) == "$0.1100 spent, $36.00/h, $0.8900 of $1.00 left"
    assert meter_line(run, at(500)) == "$4.91 spent, $36.00/h, $0.00 of $1.00 left"
    assert meter_line(run, at(-100)) == "$0.0100 spent, $36.00/h, $0.9900 of $1.00 left", "a clock that was set back"
    cheap = replace(run, spells=(Spell("a-1", at(0), None, Decimal("0.03")),), budget=None)
    assert meter_line(cheap, at(2)) == meter_line(cheap, at(3)) == "$0.0000 spent, $0.0300/h", "it does not race"
    assert meter_line(replace(run, spells=()), at(20)) == ""
    assert meter_line(replace(run, state=RunState.FAILED), at(20)) == ""


@contextmanager
def a_terminal(monkeypatch: pytest.MonkeyPatch, kind: str = "xterm") -> Iterator[Callable[[], bytes]]:
    """Both streams are a terminal; gives what has been written to it so far."""
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", kind)
    with monkeypatch.context() as patch, os.fdopen(follower, "w") as stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)

        def seen() -> bytes:
            os.write(follower, b"~")
            data = b""
            while not data.endswith(b"~"):
                data += os.read(leader, 65536)
            return data.removesuffix(b"~").replace(b"\r\n", b"\n")

        yield seen
    os.close(leader)


def test_the_status_is_written_over_and_gives_way_to_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "colourful", lambda _: False)
    with a_terminal(monkeypatch) as seen:
        printer = TextPrinter(live=True)
        printer.status("$1 spent")
        printer.status("$1 spent")
        printer.status("$2 spent")
        printer.text(LogSource(1, 0), b"epoch 1\n")
        printer.status("$3 spent")
        printer.status("")
        assert seen() == b"\r$1 spent\x1b[K\r$2 spent\x1b[K\r\x1b[Kepoch 1\n\r$3 spent\x1b[K\r\x1b[K"


def test_the_status_stays_out_of_a_line_that_a_script_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal(monkeypatch) as seen:
        printer = TextPrinter(live=True)
        printer.text(LogSource(1, 0), b"12 %")
        printer.status("$1 spent")
        printer.text(LogSource(1, 0), b" 13 %\n")
        assert b"spent" not in seen()


def test_a_terminal_that_cannot_erase_has_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal(monkeypatch, "dumb") as seen:
        printer = TextPrinter(live=True)
        printer.status("$1 spent")
        printer.text(LogSource(1, 0), b"x\n")
        assert seen() == b"x\n"


def test_a_pipe_has_no_status(capfd: pytest.CaptureFixture[str]) -> None:
    TextPrinter(live=True).status("$1 spent")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (timedelta(seconds=5), "fetched just now"),
        (timedelta(seconds=-50), "fetched just now"),
        (timedelta(minutes=7), "fetched 7 minutes ago"),
        (timedelta(hours=1), "fetched 1 hour ago"),
        (timedelta(days=3), "fetched 3 days ago"),
        (timedelta(days=424), "of 2025-01-01, 14 months old"),
    ],
)
def test_the_age_of_a_price_is_reported(age: timedelta, said: str) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert how_old(now - age, now) == said


def test_sums_are_shown_as_finely_as_they_need() -> None:
    assert [usd(Decimal(one)) for one in ("0", "0.00012", "0.5", "1", "12345.678")] == [
        "$0.00",
        "$0.000120",
        "$0.5000",
        "$1.00",
        "$12,345.68",
    ]
    assert (step(4100), step(2.5)) == ("4,100", "2.5")
    assert how_old(None, START) == "fixed"


def test_a_portrait_says_what_the_run_has_cost() -> None:
    lines = portrait(story(Told()), [], [], Path(), at(1000), 100, plain)
    assert "  cost       $0.1500; details: stoker receipt ants-1" in lines
    free = portrait(story(Told(price=Decimal(0))), [], [], Path(), at(1000), 100, plain)
    assert not any("$" in line for line in free)
