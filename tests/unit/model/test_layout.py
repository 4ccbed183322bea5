"""Where everything is in a store."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from stoker.errors import Missing
from stoker.model.workspace import layout
from stoker.testing.fakes import MemoryStore

SHA = "ab" + "0" * 62
SPELLED = {
    name: function
    for name, function in inspect.getmembers(layout, inspect.isfunction)
    if function.__module__ == layout.__name__ and function.__annotations__["return"] == "str"
}


def spelled(function: Callable[..., str], *, number: int = 1) -> str:
    """The key for arguments that fit, whatever they are called."""
    values: list[str | int] = []
    for parameter in inspect.signature(function).parameters.values():
        text = {"sha256": SHA, "run_id": "r1"}.get(parameter.name, "x")
        values.append(number if parameter.annotation == "int" else text)
    return function(*values)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (layout.blob(SHA), f"blobs/ab/{SHA}"),
        (layout.snapshot("s1"), "snapshots/s1.json"),
        (layout.record("r1"), "stoker/records/runs/r1.json"),
        (layout.code(SHA), f"stoker/code/{SHA}"),
        (layout.content("ants", SHA), f"stoker/data/ants/contents/ab/{SHA}"),
        (layout.output("r1", SHA), f"runs/r1/outputs/ab/{SHA}"),
        (layout.wishes("r1", 2), "runs/r1/attempts/2/wishes.json"),
        (layout.orders("r1", 2), "runs/r1/attempts/2/node-0/orders.json"),
        (layout.report("r1", 2, 1), "runs/r1/attempts/2/node-1/report.json"),
        (layout.events("r1", 2), "runs/r1/attempts/2/node-0/events.jsonl"),
        (layout.log("r1", 2, 3), "runs/r1/attempts/2/logs/3.log"),
        (layout.log_times("r1", 2, 3), "runs/r1/attempts/2/logs/3.times"),
        (layout.metrics("r1", 2), "runs/r1/attempts/2/metrics-0.jsonl"),
        (layout.outputs("r1", 2), "runs/r1/attempts/2/outputs-0.json"),
    ],
)
def test_keys_are_spelled_as_the_drawing_says(key: str, expected: str) -> None:
    assert key == expected


@pytest.mark.parametrize("name", sorted(SPELLED))
def test_every_key_is_one_a_store_takes(name: str) -> None:
    key = spelled(SPELLED[name])
    if key.endswith("/"):
        assert list(MemoryStore().list(key)) == []
    else:
        with pytest.raises(Missing):
            MemoryStore().get(key)


def test_no_two_things_have_the_same_key() -> None:
    keys = [spelled(function) for function in SPELLED.values()]
    assert len(set(keys)) == len(keys)


def test_everything_of_a_run_goes_with_it() -> None:
    of_a_run = [spelled(one) for one in SPELLED.values() if "run_id" in inspect.signature(one).parameters]
    assert [key for key in of_a_run if not key.startswith(layout.run("r1"))] == [layout.record("r1")]


def test_a_run_is_not_below_another_whose_id_it_begins_with() -> None:
    assert not layout.lease("r10", 1).startswith(layout.run("r1"))


def test_what_is_ours_in_a_store_is_distinguished_from_what_is_not() -> None:
    ours = [
        layout.content("ants", SHA),
        layout.code(SHA),
        layout.manifest("ants", SHA),
        layout.dataset_record("ants"),
        layout.blob(SHA),
    ]
    ours += [layout.snapshot(SHA), layout.record("0123456789abcdef0123")]
    theirs = ["data/train/a.jpg", f"data/cd/{SHA}", f"data/x/ab/{SHA}", "datasets/coco/a.json", "runs/1/log", "a", SHA]
    assert [key for key in ours + theirs if layout.is_ours(key)] == ours
    assert layout.content_hash(layout.content("ants", SHA)) == SHA
    assert [layout.content_hash(key) for key in theirs] == [None] * len(theirs)
