"""Secrets never reach the store, however the output was cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.shipping.logs import Masking

SECRET = "hunter2-hunter2"


def shipped_in_pieces(masking: Masking, pieces: list[bytes]) -> bytes:
    """What the log shipper does: it gives the rest again, with what follows."""
    shown, rest, covered = b"", b"", 0
    for piece in [*pieces, None]:
        rest += piece or b""
        masked, covered = masking.mask(rest, covered, final=piece is None)
        shown, rest = shown + masked, rest[len(masked) :]
    assert rest == b""
    return shown


def starred(text: bytes, secrets: list[bytes]) -> bytes:
    """The plain definition: every byte of every occurrence is a star."""
    covered = {
        at + inside
        for secret in secrets
        for at in range(len(text))
        if text.startswith(secret, at)
        for inside in range(len(secret))
    }
    return bytes(ord("*") if at in covered else byte for at, byte in enumerate(text))


def test_a_secret_becomes_stars_of_the_same_length() -> None:
    assert Masking([SECRET]).whole(f"token={SECRET}!".encode()) == b"token=***************!"


def test_a_secret_that_is_cut_in_two_is_masked() -> None:
    assert shipped_in_pieces(Masking([SECRET]), [b"a hunter2-", b"hunter2 b"]) == b"a *************** b"


def test_a_beginning_that_comes_to_nothing_is_shown() -> None:
    masking = Masking([SECRET])
    assert masking.mask(b"a hunter2-") == (b"a ", 0)
    assert masking.mask(b"hunter2-cats") == (b"hunter2-cats", 0)


def test_a_beginning_at_the_very_end_is_shown() -> None:
    assert shipped_in_pieces(Masking([SECRET]), [b"a hunter2-"]) == b"a hunter2-"


def test_nothing_is_held_back_after_an_ordinary_line() -> None:
    assert Masking([SECRET]).mask(b"epoch 1\n") == (b"epoch 1\n", 0)


def test_a_newline_around_a_secret_is_no_part_of_it() -> None:
    masking = Masking([f"\n{SECRET}\n"])
    assert masking.mask(f"{SECRET}\n".encode()) == (b"***************\n", 0)


def test_short_values_are_not_touched() -> None:
    assert Masking(["1234567"]).whole(b"loss 1234567") == b"loss 1234567"


def test_a_secret_inside_json_is_masked_as_it_is_written_there() -> None:
    assert Masking(['pass"word"äö']).whole(b'{"a": "pass\\"word\\"\\u00e4\\u00f6"}') == b'{"a": "' + b"*" * 24 + b'"}'


letters = st.text("ab*", min_size=0, max_size=60).map(str.encode)
secrets = st.lists(st.text("ab", min_size=8, max_size=10), min_size=1, max_size=3)


@given(st.lists(letters, max_size=6), secrets)
def test_pieces_do_not_matter(pieces: list[bytes], values: list[str]) -> None:
    whole = b"".join(pieces)
    assert shipped_in_pieces(Masking(values), pieces) == starred(whole, [value.encode() for value in values])


@given(st.lists(st.integers(0, 40)), secrets)
def test_pieces_around_real_occurrences_do_not_matter(cuts: list[int], values: list[str]) -> None:
    whole = "-".join([*values, values[0][:5], *values]).encode()
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    pieces = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert shipped_in_pieces(Masking(values), pieces) == starred(whole, [value.encode() for value in values])
