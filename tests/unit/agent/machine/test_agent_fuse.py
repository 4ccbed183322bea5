"""The node's own budget limit: when the script must save, when it is stopped, and what the tenant learns."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.machine.fuse import FuseClock, NodeFuse, TenantFuse, age_by_date, leave_word
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.model.orders import Notice
from stoker.model.run.money import Fuse

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def fuse(seconds: float, *, save_s: float = 0.0) -> Fuse:
    """At a dollar a second."""
    return Fuse(Decimal(str(seconds)), Decimal(0), Decimal(3600), NOW, save_s, "its budget of $9.00")


def test_a_clock_counts_from_what_was_heard_less_its_age() -> None:
    now = [1000.0]
    clock = FuseClock(lambda: now[0])
    assert clock.left_s == math.inf
    assert clock.hear(fuse(60), age_s=10)
    now[0] += 20
    assert clock.left_s == 30
    assert not clock.hear(fuse(60), age_s=0), "the same again is no news: it would begin anew"
    assert not clock.hear(None, age_s=0), "nothing new was said"
    assert clock.left_s == 30
    assert clock.hear(fuse(600), age_s=2)
    assert clock.left_s == 598


@pytest.mark.parametrize(("later_s", "age_s"), [(90, 90), (-5, 0), (86_400, 900)])
def test_a_date_that_cannot_be_is_not_believed(later_s: float, age_s: float) -> None:
    assert age_by_date(NOW, NOW + timedelta(seconds=later_s)) == age_s


class Heard:
    """A limit that is checked by hand, and its messages."""

    def __init__(self, folder: Path, longest_s: float = 0.0) -> None:
        self.notices: list[Notice | None] = []
        self.blown: list[str] = []
        self.told: list[str] = []
        keeper: Any = SimpleNamespace(longest_s=longest_s)
        tell: Callable[[str, str], None] = lambda kind, _: self.told.append(kind)  # noqa: E731
        self.fuse = NodeFuse(folder / "fuse.json", keeper, self.notices.append, self.blown.append, tell)
        self.fuse.finish(over=False)  # its thread ends as soon as it begins

    def hears(self, seconds: float, **more: float) -> None:
        self.fuse.hear(fuse(seconds, **more), 0.0)
        self.fuse._look()


def test_a_script_saves_and_is_stopped_before_the_budget_is_spent(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.hears(60)
    assert (heard.notices, heard.blown) == ([], [])
    heard.hears(4.5)
    (notice,) = heard.notices
    assert notice and notice.seconds == pytest.approx(2.5, abs=0.2)
    assert heard.blown == []
    heard.hears(1.9)
    assert heard.blown == ["its budget of $9.00 is nearly spent"]
    assert (len(heard.notices), heard.told) == (1, ["fuse"])


def test_what_a_commit_and_a_step_take_is_held_back(tmp_path: Path) -> None:
    heard = Heard(tmp_path, longest_s=8.0)
    assert (heard.fuse.finish_s, heard.fuse.save_s) == (11.0, 10.0)
    heard.fuse.see(MetricPoint(0.0, 0, 1, {}))
    heard.fuse._step = (1.0, time.monotonic() - 30)
    heard.fuse.see(MetricPoint(0.0, 0, 2, {}))
    assert heard.fuse.save_s == pytest.approx(1.25 * 38, abs=0.5)


def test_what_earlier_attempts_took_is_held_back_too(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.hears(100, save_s=40)
    assert heard.fuse.save_s + heard.fuse.finish_s == 40


def test_money_that_comes_in_time_calls_the_stop_off(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.hears(4)
    heard.hears(100)
    assert heard.notices[1:] == [None]
    assert heard.told == ["fuse", "fuse-withdrawn"]
    heard.hears(1)
    assert len(heard.notices) == 3
    assert heard.blown


def test_the_tenant_goes_by_what_it_was_given_then_by_what_the_agent_heard(tmp_path: Path) -> None:
    now, file = [100.0], tmp_path / "fuse.json"
    leave_word(file, 5.0, over=True)
    tenant = TenantFuse(file, lambda: now[0])
    assert tenant.look() == -95
    tenant.begin(160.0)
    assert (tenant.look(), tenant.over) == (60, False), "an earlier agent's word does not count"
    leave_word(file, 130.0)
    assert tenant.look() == 30
    leave_word(file, 130.0, over=True)
    assert (tenant.look(), tenant.over) == (30, True)
    file.write_text("half a wo")
    assert tenant.look() == 30, "a word that cannot be read changes nothing"
