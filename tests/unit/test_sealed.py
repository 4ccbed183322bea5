"""What is sealed opens with its key and in its place, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import Corrupt
from stoker.stores.sealed import derived_key, new_key, opened, seal, signed, unseal

KEY = "11" * 32
SECRET = "sv=2026&sig=" + "s3cret" * 30


@given(st.text(max_size=400), st.text(max_size=40))
def test_what_is_sealed_opens_again(text: str, about: str) -> None:
    assert unseal(KEY, seal(KEY, text, about), about) == text


def test_nothing_of_the_text_can_be_read() -> None:
    sealed = seal(KEY, SECRET, "here")
    assert b"s3cret" not in sealed
    assert b"sig" not in sealed


def test_the_same_text_never_looks_the_same() -> None:
    assert seal(KEY, SECRET, "here") != seal(KEY, SECRET, "here")


@pytest.mark.parametrize("at", [0, 20, 40, -1])
def test_a_single_changed_byte_is_noticed(at: int) -> None:
    sealed = bytearray(seal(KEY, SECRET, "here"))
    sealed[at] ^= 1
    with pytest.raises(Corrupt):
        unseal(KEY, bytes(sealed), "here")


@pytest.mark.parametrize("data", [b"", b"stoker-sealed-1\n", b"x" * 100])
def test_what_was_never_sealed_does_not_open(data: bytes) -> None:
    with pytest.raises(Corrupt):
        unseal(KEY, data, "here")


def test_another_key_or_another_place_does_not_open_it() -> None:
    sealed = seal(KEY, SECRET, "here")
    for key, about in ((new_key(), "here"), (KEY, "there"), (derived_key(KEY, "here"), "here")):
        with pytest.raises(Corrupt):
            unseal(key, sealed, about)


def test_every_thing_has_its_own_key() -> None:
    assert derived_key(KEY, "a") != derived_key(KEY, "b")
    assert derived_key(KEY, "a") == derived_key(KEY, "a")


def test_what_is_signed_opens_only_unchanged_in_its_place_and_with_its_key() -> None:
    key = new_key()
    data = signed(key, b"the record", "store records/1")
    assert opened(key, data, "store records/1") == b"the record"
    forgeries = [data.replace(b"record", b"recorX"), b"the record", data[:20], b"", signed(key, b"x", "other")]
    for forged in forgeries:
        with pytest.raises(Corrupt):
            opened(key, forged, "store records/1")
    for other_key, place in ((new_key(), "store records/1"), (key, "store records/2")):
        with pytest.raises(Corrupt):
            opened(other_key, data, place)
