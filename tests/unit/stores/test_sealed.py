"""What is sealed opens with its key and in its place, and nowhere else: with every cipher that a node may have."""

from __future__ import annotations

import sys

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import Corrupt, NoCipher
from stoker.stores import unsealing
from stoker.stores.sealing import seal
from stoker.stores.signing import derived_key, new_key, opened, signed
from stoker.stores.unsealing import MARK, associated, libraries, opener, sealing_key, unseal

KEY = "11" * 32
SECRET = "sv=2026&sig=" + "s3cret" * 30


@pytest.fixture(params=["libcrypto", "another process"])
def cipher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "another process":
        monkeypatch.setattr(unsealing, "libraries", lambda: iter(()))


@given(st.text(max_size=400), st.text(max_size=40))
def test_what_is_sealed_opens_again(text: str, about: str) -> None:
    assert unseal(KEY, seal(KEY, text, about), about) == text


@pytest.mark.usefixtures("cipher")
@pytest.mark.parametrize("text", ["", "x", SECRET, "é" * 100_000])
def test_every_cipher_opens_it(text: str) -> None:
    assert unseal(KEY, seal(KEY, text, "here"), "here") == text


def test_this_python_has_a_libcrypto_and_needs_no_other_process() -> None:
    assert list(libraries())


def test_it_is_plain_aes_gcm() -> None:
    """Whoever has the key and the library can open it: nothing of the form is our own."""
    sealed = seal(KEY, SECRET, "here").removeprefix(MARK)
    assert AESGCM(sealing_key(KEY)).decrypt(sealed[:12], sealed[12:], associated("here")) == SECRET.encode()


# Test case 16 of the specification of GCM by McGrew and Viega.
VECTOR = {
    "key": "feffe9928665731c6d6a8f9467308308" * 2,
    "nonce": "cafebabefacedbaddecaf888",
    "plain": "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
    "b16aedf5aa0de657ba637b39",
    "about": "feedfacedeadbeeffeedfacedeadbeefabaddad2",
    "hidden": "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
    "c5f61e6393ba7a0abcc9f662",
    "tag": "76fc6ece0f4e1768cddf8853bb2d551b",
}


@pytest.mark.usefixtures("cipher")
def test_a_published_example_opens() -> None:
    value = {name: bytes.fromhex(text) for name, text in VECTOR.items()}
    hidden = value["hidden"] + value["tag"]
    assert opener()(value["key"], value["nonce"], hidden, value["about"]) == value["plain"]
    assert opener()(value["key"], value["nonce"], hidden, value["about"] + b"x") is None


def test_nothing_of_the_text_can_be_read() -> None:
    sealed = seal(KEY, SECRET, "here")
    assert b"s3cret" not in sealed
    assert b"sig" not in sealed


def test_the_same_text_never_looks_the_same() -> None:
    assert seal(KEY, SECRET, "here") != seal(KEY, SECRET, "here")


def test_a_single_changed_bit_is_noticed_wherever_it_is() -> None:
    sealed = seal(KEY, "hush", "here")
    for at in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            unseal(KEY, bytes(changed), "here")


def test_what_is_cut_short_or_longer_does_not_open() -> None:
    sealed = seal(KEY, SECRET, "here")
    for forged in (*(sealed[:size] for size in range(len(sealed))), sealed + b"\0", MARK + sealed):
        with pytest.raises(Corrupt):
            unseal(KEY, forged, "here")


@pytest.mark.usefixtures("cipher")
def test_another_key_or_another_place_does_not_open_it() -> None:
    sealed = seal(KEY, SECRET, "here")
    for key, about in ((new_key(), "here"), (KEY, "there"), (derived_key(KEY, "here"), "here")):
        with pytest.raises(Corrupt):
            unseal(key, sealed, about)


def test_a_node_without_any_cipher_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = seal(KEY, SECRET, "here")
    monkeypatch.setattr(unsealing, "libraries", lambda: iter(()))
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    with pytest.raises(NoCipher) as raised:
        unseal(KEY, sealed, "here")
    assert "libssl3" in raised.value.hint
    assert SECRET not in str(raised.value)


def test_a_library_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Python with OpenSSL built in: its `ssl` is not a file."""
    import _ssl

    monkeypatch.delattr(_ssl, "__file__")
    assert unseal(KEY, seal(KEY, SECRET, "here"), "here") == SECRET
    monkeypatch.setattr("ctypes.CDLL", _missing)
    assert list(libraries()) == []
    assert unseal(KEY, seal(KEY, SECRET, "here"), "here") == SECRET


def _missing(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_nonce_is_never_used_twice() -> None:
    assert len({seal(KEY, "x", "here")[len(MARK) :][:12] for _ in range(1000)}) == 1000


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


def test_a_signature_of_earlier_servers_still_counts() -> None:
    """Records stay in stores for years."""
    data = signed("ab" * 32, b"record", "store records/1")
    assert data == b"stoker-signed-1 1fce6320a76c6c7ad642f098cf377aa91d5c987eecb1ffe0f4602bf83b6985a1\nrecord"
