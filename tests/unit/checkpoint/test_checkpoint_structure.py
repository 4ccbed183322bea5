"""Everything that can be stored is restored as it was, and everything else is refused by its path."""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.read import format
from stoker.checkpoint.state.structure import SIZES, Flattener, Leaf, make, restore, view
from stoker.errors import NotStorable, Unreadable

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.complex_numbers(allow_nan=False)
    | st.binary()
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.just("$")
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=20,
)


def there_and_back(value: Any) -> Any:
    """Through text, as on the disk; numbers through their bytes."""
    flat = Flattener()
    form = json.loads(json.dumps(flat.flatten(value, "it")))
    kept = {name: (leaf, bytes(view(flat.values[name], leaf))) for name, leaf in flat.leaves.items()}
    return restore(form, lambda name: make(kept[name][0], memoryview(bytearray(kept[name][1]))))


def same(one: Any, other: Any) -> bool:
    """Equal in type, too, and with NaN equal to itself and 0.0 not to -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(a, b) and same(v, w) for (a, v), (b, w) in pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize("kind", "bBhHiIlLqQfd")
def test_arrays_come_back_as_they_were(kind: str) -> None:
    assert there_and_back({"a": array(kind, [1, 2, 3])}) == {"a": array(kind, [1, 2, 3])}


def test_what_cannot_be_stored_is_refused_by_its_path_with_the_way_out() -> None:
    with pytest.raises(NotStorable, match=r"`it/deep/1`.*builtins\.object") as caught:
        Flattener().flatten({"deep": [1, object()]}, "it")
    assert "load_state_dict" in caught.value.hint


def test_int_and_text_keys_of_the_same_look_stay_apart() -> None:
    value = {1: b"one", "1": b"text"}
    assert there_and_back(value) == value


leaf_shapes = st.lists(st.integers(0, 300), max_size=3).map(tuple)
leaves = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.builds(Leaf, st.sampled_from(sorted(SIZES)), leaf_shapes, st.just("torch")),
    max_size=12,
)


@given(leaves)
def test_every_leaf_is_in_exactly_one_file_and_files_have_safe_names(found: dict[str, Leaf]) -> None:
    files = format.pack(found)
    assert sorted(name for names in files.values() for name in names) == sorted(found)
    assert all("/" not in file and not file.startswith(".") and len(file) < 200 for file in files)


@given(leaves)
def test_adding_a_part_leaves_the_files_of_others_as_they_are(found: dict[str, Leaf]) -> None:
    model = {f"model/{name}": leaf for name, leaf in found.items()}
    more = {**model, "optimizer/x": Leaf("F32", (3,), "torch")}
    assert format.pack(model).items() <= format.pack(more).items()


@given(st.dictionaries(st.text(min_size=1), st.binary(max_size=64), max_size=5))
def test_safetensors_are_read_as_they_were_written(blobs: dict[str, bytes]) -> None:
    described = {name: Leaf("U8", (len(blob),), "torch") for name, blob in blobs.items() if name != "__metadata__"}
    data = format.header(described) + b"".join(blobs[name] for name in described)
    assert {name: bytes(part) for name, (_, part) in format.places(memoryview(data)).items()} == {
        name: blobs[name] for name in described
    }


@given(st.binary(max_size=200))
def test_what_is_not_safetensors_is_reported_as_unreadable(data: bytes) -> None:
    with suppress(Unreadable):
        format.places(memoryview(data))


def test_header_that_points_outside_its_file_is_unreadable() -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}).encode()
    with pytest.raises(Unreadable, match="100"):
        format.places(memoryview(struct.pack("<Q", len(text)) + text + b"short"))
