"""What the policy bench stands on: an oracle that is right, traces that read as they were written, a greedy policy."""

from __future__ import annotations

import io
import sys
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of what is installed

from benchmarks import spottrace  # noqa: E402
from benchmarks.oracle import least_cost  # noqa: E402
from benchmarks.policies import DEADLINE, START_S, Case, by_engine, by_oracle, greedily, on_demand  # noqa: E402
from benchmarks.spottrace import STEP_S, Trace  # noqa: E402

from stoker.testing.world.scenario import MarketPlace  # noqa: E402

HOUR = 3600.0


def trace(*spans: tuple[float, float], spot: str = "0.2") -> Trace:
    """One place whose machines are available in these hours."""
    hours = tuple((begin * HOUR, end * HOUR) for begin, end in spans)
    return Trace("hand-made", 100 * HOUR, Decimal(1), (MarketPlace("here", Decimal(spot), spot=True, open=hours),))


@pytest.mark.parametrize(
    ("spans", "deadline_h", "expected"),
    [
        (((0, 100),), 5, (4 + 1 / 15) * 0.2),  # spot all the way: four hours, and four minutes to start
        ((), 5, 4 + 1 / 15),  # none: on-demand
        (((2, 100),), 7, (4 + 1 / 15) * 0.2),  # it pays to wait
        # Four minutes too few: as many are worked on-demand, with its start, before spot is there.
        (((2, 100),), 6, 4 * 0.2 + 2 / 15),
        ((), 4, float("inf")),  # not even the oracle
    ],
)
def test_the_oracle_knows_what_is_cheapest(
    spans: tuple[tuple[float, float], ...], deadline_h: float, expected: float
) -> None:
    found = least_cost(trace(*spans), 4 * HOUR, deadline_h * HOUR, START_S)
    assert found == pytest.approx(expected)


def test_the_next_machine_may_start_while_the_one_before_works() -> None:
    """Spot for two hours, then none: with no time to lose, on-demand is started ahead."""
    found = least_cost(trace((0, 2)), 4 * HOUR, 4 * HOUR + START_S, START_S)
    spot_work_h = 2 - 1 / 15
    assert found == pytest.approx(2 * 0.2 + (4 - spot_work_h) + 1 / 15)


def test_greedy_waits_until_it_is_high_time() -> None:
    case = Case(trace((100, 200)), 4 * HOUR, 8 * HOUR)
    score = greedily(case)
    assert score.meets(case)
    assert score.usd == pytest.approx(4 + 1 / 15)
    assert score.ended_s == pytest.approx(8 * HOUR - START_S)


def test_the_engine_meets_a_deadline_and_costs_no_less_than_the_oracle() -> None:
    for spans in (((0, 2), (3, 5)), ((1, 2),), ((0, 100),)):
        case = Case(trace(*spans), 4 * HOUR, 6 * HOUR)
        score = by_engine(case, DEADLINE)
        assert score.meets(case)
        assert by_oracle(case).usd <= score.usd <= 1.2 * on_demand(case).usd


def test_a_trace_reads_as_it_was_written(tmp_path: Path) -> None:
    drawn = spottrace.drawn(3, 50 * HOUR)
    file = tmp_path / "drawn.csv"
    with file.open("w", encoding="utf-8") as out:
        spottrace.write(drawn, out)
    again = spottrace.read(file).window(0, 40 * HOUR, "again")
    first = drawn.window(0, 40 * HOUR, "again")
    assert again.on_demand == first.on_demand
    assert {one.name: one.open for one in again.places} == {one.name: one.open for one in first.places}


def test_public_availability_becomes_spans() -> None:
    document = {"metadata": {"gap_seconds": 300}, "data": [0, 1, 1, 0, 2]}
    made = spottrace.of_availability({"zone": document}, Decimal("0.3"), Decimal(1))
    assert made.places[0].open == ((300.0, 900.0), (1200.0, 1500.0))


def test_a_price_history_is_there_while_it_costs_no_more_than_on_demand() -> None:
    def row(minute: int, price: str) -> dict[str, str]:
        return {"Timestamp": f"2026-01-01T00:{minute:02}:00+00:00", "AvailabilityZone": "zone", "SpotPrice": price}

    document = {"SpotPriceHistory": [row(30, "0.4"), row(0, "0.3"), row(10, "1.5")]}
    made = spottrace.of_price_history(document, Decimal(1))
    assert made.places[0].open == ((0.0, 600.0),)
    assert made.places[0].prices[-1] == (1800.0, Decimal("0.4"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", "expected the columns"),
        ("seconds,place,available,usd_per_hour\n0,here,1,0.3\n", "expected a line with the place `on-demand`"),
        ("seconds,place,available,usd_per_hour\n0,on-demand,1,1\n0,here,yes,0.3\n", "expected 0 or 1"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "wrong.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=expected):
        spottrace.read(tmp_path / "wrong.csv")


def test_generated_traces_are_on_the_grid() -> None:
    for place in spottrace.drawn(1, 50 * HOUR).places:
        assert all(at % STEP_S == 0 for span in place.open or () for at in span)
    out = io.StringIO()
    spottrace.write(spottrace.drawn(1, 50 * HOUR), out)
    assert out.getvalue().startswith("seconds,place,available,usd_per_hour\n0,on-demand,1,1\n")
