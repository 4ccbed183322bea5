"""Many blobs travel as one tar, and nothing else does."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import tracemalloc
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadInput, Corrupt
from stoker.model.cause import Cause
from stoker.stores.transfer.verified import Verified
from stoker.stores.trees.blobstream import CHUNK_BYTES, Item, blob_stream, read_blobs


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def items(contents: Iterable[bytes]) -> list[Item]:
    return [(sha256(data), len(data), partial(io.BytesIO, data)) for data in contents]


def streamed(*contents: bytes) -> bytes:
    return b"".join(blob_stream(items(contents)))


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """A tar with one member, created by another program."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(data), target
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Trickle(io.RawIOBase):
    """Gives a byte or two at a time, as a socket may."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._data.read(min(size or 0, 7))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_every_blob_comes_out_as_it_went_in(contents: list[bytes]) -> None:
    stream = streamed(*contents)
    assert [(name, blob.read()) for name, blob in read_blobs(io.BytesIO(stream))] == [
        (sha256(data), data) for data in contents
    ]


def test_a_stream_that_comes_in_small_pieces_is_read_the_same() -> None:
    contents = [b"", b"x" * 511, b"y" * 512, b"z" * 1025]
    assert [blob.read() for _, blob in read_blobs(Trickle(streamed(*contents)))] == contents


def test_every_tar_program_reads_the_stream(tmp_path: Path) -> None:
    contents = [b"", b"hello", b"x" * 100_000]
    (tmp_path / "blobs.tar").write_bytes(streamed(*contents))
    with tarfile.open(tmp_path / "blobs.tar") as tar:
        assert {info.name: (info.isreg(), info.size) for info in tar} == {
            sha256(data): (True, len(data)) for data in contents
        }
    subprocess.run(["tar", "-xf", "blobs.tar"], cwd=tmp_path, check=True)
    assert [(tmp_path / sha256(data)).read_bytes() for data in contents] == contents


def test_a_stream_of_another_program_is_read() -> None:
    stream = io.BytesIO(member(sha256(b"hello"), b"hello"))
    assert [(name, blob.read()) for name, blob in read_blobs(stream)] == [(sha256(b"hello"), b"hello")]


def test_small_blobs_share_a_chunk_and_large_ones_are_cut() -> None:
    small = list(blob_stream(items(b"%d" % number for number in range(1000))))
    assert [len(chunk) >= CHUNK_BYTES for chunk in small[:-1]] == [True] * 3
    large = list(blob_stream(items([b"x" * 2_000_000])))
    assert max(map(len, large)) <= 2 * CHUNK_BYTES
    assert len(large) == 8


class Zeros(io.RawIOBase):
    """A large file that uses no space."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size

    def read(self, size: int | None = -1, /) -> bytes:
        given = min(size or 0, self._left)
        self._left -= given
        return bytes(given)


def test_a_large_blob_is_never_held_whole() -> None:
    size = 64 << 20
    digest = hashlib.sha256(bytes(size)).hexdigest()
    tracemalloc.start()
    for chunk in blob_stream([(digest, size, lambda: Zeros(size))]):  # type: ignore[list-item,return-value]
        assert len(chunk) <= 2 * CHUNK_BYTES
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * CHUNK_BYTES


def test_a_size_that_octal_digits_cannot_hold_travels() -> None:
    size = 10 * 8**11
    chunk = next(blob_stream([("a" * 64, size, lambda: io.BytesIO(bytes(CHUNK_BYTES)))]))
    info = tarfile.TarInfo.frombuf(chunk[:512], "utf-8", "strict")
    assert (info.name, info.size) == ("a" * 64, size)
    _, blob = next(read_blobs(io.BytesIO(chunk)))
    assert isinstance(blob, Verified)
    assert blob.left == size


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../escape", tarfile.REGTYPE, ""),
        ("/etc/passwd", tarfile.REGTYPE, ""),
        ("train.py", tarfile.REGTYPE, ""),
        ("A" * 64, tarfile.REGTYPE, ""),
        ("a" * 63, tarfile.REGTYPE, ""),
        ("a" * 65, tarfile.REGTYPE, ""),
        ("a" * 64, tarfile.SYMTYPE, "/etc/passwd"),
        ("a" * 64, tarfile.LNKTYPE, "b" * 64),
        ("a" * 64, tarfile.DIRTYPE, ""),
        ("a" * 64, tarfile.FIFOTYPE, ""),
        ("a" * 64, tarfile.CHRTYPE, ""),
        ("a" * 200, tarfile.REGTYPE, ""),
    ],
)
def test_members_that_are_not_files_named_by_a_hash_are_refused(name: str, kind: bytes, target: str) -> None:
    with pytest.raises(BadInput) as refused:
        list(read_blobs(io.BytesIO(member(name, kind=kind, target=target))))
    assert refused.value.cause == Cause.NAME_INVALID


def read_all(stream: bytes) -> list[bytes]:
    return [blob.read() for _, blob in read_blobs(io.BytesIO(stream))]


def test_a_stream_that_is_interrupted_is_noticed_wherever_it_breaks() -> None:
    whole = streamed(b"first", b"second" * 200)
    for length in [0, 1, 511, 512, 515, 517, 600, 1024, 1100, 1536, 2000, 2736, 3071, 3072 - 1]:
        with pytest.raises(Corrupt):
            read_all(whole[:length])
    assert len(read_all(whole[: 3072 + 512])) == 2  # the end is marked by a block of zeros, and often by two


def test_a_stream_that_is_interrupted_in_what_was_not_read_is_noticed() -> None:
    whole = streamed(b"x" * 10_000)
    with pytest.raises(Corrupt):
        [name for name, _ in read_blobs(io.BytesIO(whole[:5000]))]


@settings(deadline=None)
@given(st.integers(0, 511), st.integers(1, 255))
def test_a_damaged_header_is_noticed(place: int, change: int) -> None:
    whole = bytearray(streamed(b"content"))
    whole[place] ^= change
    try:
        contents = read_all(bytes(whole))
    except (Corrupt, BadInput):
        return
    assert contents == [b"content"]  # only the padding of the checksum itself can change unnoticed
    assert 148 <= place < 156


@pytest.mark.parametrize("size", [b"-0000000001\0", b"0000_000010\0", b"0x000000010\0", b"99999999999\0"])
def test_a_size_that_is_no_number_is_noticed(size: bytes) -> None:
    block = bytearray(streamed(b"content")[:512])
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(Corrupt):
        read_all(bytes(block) + bytes(2048))


def test_a_size_beyond_all_memory_is_a_stream_that_breaks_off() -> None:
    chunk = next(blob_stream([("a" * 64, 1 << 80, lambda: io.BytesIO(bytes(CHUNK_BYTES)))]))
    with pytest.raises(Corrupt):
        read_all(chunk)


def test_a_blob_with_other_bytes_is_noticed_by_its_reader() -> None:
    whole = streamed(b"content").replace(b"content", b"CONTENT")
    with pytest.raises(Corrupt, match=sha256(b"content")):
        read_all(whole)


@pytest.mark.parametrize("data", [b"other!!", b"short", b""])
def test_a_blob_with_other_bytes_is_never_written_as_if_it_were_right(data: bytes) -> None:
    item: Item = (sha256(b"content"), 7, lambda: io.BytesIO(data))
    with pytest.raises(Corrupt):
        list(blob_stream([item]))


def test_an_empty_blob_under_the_wrong_hash_is_noticed() -> None:
    with pytest.raises(Corrupt):
        list(blob_stream([(sha256(b"content"), 0, lambda: io.BytesIO(b""))]))


def test_what_is_left_unread_is_skipped_and_cannot_be_read_later() -> None:
    blobs = read_blobs(io.BytesIO(streamed(b"first", b"x" * 3000, b"last")))
    _, first = next(blobs)
    assert first.read(2) == b"fi"
    _, second = next(blobs)
    assert second.read(1000) == b"x" * 1000
    _, last = next(blobs)
    assert last.read() == b"last"
    with pytest.raises(ValueError, match="closed"):
        second.read()


def test_an_empty_stream_is_one_end() -> None:
    assert streamed() == bytes(1024)
    assert read_all(streamed()) == []


def test_a_verified_file_reads_like_any_other() -> None:
    data = b"0123456789"
    file = Verified(io.BytesIO(data + b"beyond"), sha256(data), len(data))
    buffer = bytearray(4)
    assert (file.readable(), file.read(3), file.readinto(buffer), bytes(buffer)) == (True, b"012", 4, b"3456")
    assert (file.readall(), file.read(), file.read(5)) == (b"789", b"", b"")
    assert io.BufferedReader(Verified(io.BytesIO(data), sha256(data), len(data))).read() == data
