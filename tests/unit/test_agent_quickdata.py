"""The agent's stand-in for `dataclasses` gives the model the same behaviour as the real module."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from stoker.agent import quickdata

SAME = """
import sys
if sys.argv[1] == "quick":
    from stoker.agent.quickdata import install
    install()
from datetime import UTC, datetime
from stoker.errors import JobInvalid
from stoker.model.job import Job
from stoker.model.orders import Orders, Wishes
from stoker.model.report import MetricSummary, Outcome, Phase, RankEnd, Report
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.wire import dump, load

job = Job(name="a", run="python ${data.x}", data={"x": "/d"}, spot={"max_price": "0.5"}, stop_when="acc >= 0.9",
          environment="requirements.txt", time_limit="1h", processes="gpus", secrets=["T"])
orders = Orders("r", "a-1", 1, 0, "k", job, "s", "/p", {"x": "/d"})
now = datetime(2026, 1, 2, tzinfo=UTC)
report = Report(1, 0, Phase.DONE, now, 3, (RankEnd(0, 1),), now, now, Outcome.FAILED, 1, "m", "h", {"0": 4},
                {"loss": MetricSummary(1.0, 0.5, 2.0, 3, 7)}, 1, 2)
snapshot = Snapshot((Entry("a", sha256="00", size_bytes=1), Entry("b", EntryKind.LINK, target="a")))
for value in (orders, report, snapshot, Wishes()):
    print(dump(value), load(type(value), dump(value)) == value)
print(snapshot.id, hash(snapshot.entries[0]) == hash(snapshot.entries[0]), repr(snapshot.entries[1]))
for wrong in ({"name": "A"}, {"name": "a", "run": "x", "nodez": 3}, {"name": "a", "run": "x", "env": {"STOKER_A": 1}}):
    try:
        Job.read(wrong)
    except JobInvalid as error:
        print(error)
try:
    snapshot.entries = ()
except AttributeError as error:
    print(type(error).__name__)
try:
    Entry()
except TypeError:
    print("TypeError")
"""


def test_the_model_behaves_the_same() -> None:
    quick, real = (
        subprocess.run([sys.executable, "-c", SAME, which], capture_output=True, text=True, check=True).stdout
        for which in ("quick", "real")
    )
    assert quick == real
    assert quick.count("True") == 5


@pytest.mark.parametrize("module", [quickdata, dataclasses])
def test_it_is_used_in_the_same_way(module: Any) -> None:
    class Base:
        kind: ClassVar[str] = "base"
        first: int
        second: list[int] = module.field(default_factory=list, metadata={"help": "words"})

    record = module.dataclass(Base)
    one = record(1)
    assert (one.first, one.second, one == record(1), one == record(2)) == (1, [], True, False)
    assert one.second is not record(1).second
    assert module.replace(one, first=5) == record(5)
    assert [field.name for field in module.fields(record)] == ["first", "second"]
    assert module.fields(one)[1].metadata["help"] == "words"
    assert module.is_dataclass(one) and module.is_dataclass(record) and not module.is_dataclass(1)
    for wrong in ([], [1, [], 3]):
        with pytest.raises(TypeError):
            record(*wrong)
    with pytest.raises(TypeError):
        record(1, first=2)
    with pytest.raises(TypeError):
        record(1, third=2)
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize("module", [quickdata, dataclasses])
def test_frozen_records_stay_as_they_are(module: Any) -> None:
    class Base:
        first: int = 1

    one = module.dataclass(frozen=True)(Base)()
    with pytest.raises(AttributeError):
        one.first = 2
    with pytest.raises(AttributeError):
        del one.first
    assert hash(one) == hash(type(one)())


@pytest.mark.parametrize("module", [quickdata, dataclasses])
def test_records_inherit_and_take_keywords_alone(module: Any) -> None:
    class Base:
        first: int

    class Derived(module.dataclass(Base)):  # type: ignore[misc]
        second: int = 2

    derived = module.dataclass(kw_only=True)(Derived)
    assert derived(1).second == 2
    with pytest.raises(TypeError):
        derived(1, 2)
