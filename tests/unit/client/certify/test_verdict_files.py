"""How far two output files are apart."""

import csv
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.client.certify.files import FileChange, FileFault, changed, compare

Write = Callable[[Path, Sequence[float]], None]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    return first, second


def as_json(path: Path, values: Sequence[float]) -> None:
    path.write_text(json.dumps({"weights": list(values), "name": "net"}))


def as_jsonl(path: Path, values: Sequence[float]) -> None:
    path.write_text("".join(json.dumps({"loss": value}) + "\n" for value in values))


def as_csv(path: Path, values: Sequence[float]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["step", "loss"], *([step, value] for step, value in enumerate(values))])
    path.write_text(text.getvalue())


def as_npy(path: Path, values: Sequence[float]) -> None:
    path.write_bytes(npy(values))


def npy(values: Sequence[float]) -> bytes:
    header = str({"descr": "<f4", "fortran_order": False, "shape": (len(values),)}).ljust(117) + "\n"
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(header))
        + header.encode()
        + struct.pack(f"<{len(values)}f", *values)
    )


def as_npz(path: Path, values: Sequence[float]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("same.npy", npy([1.0]))
        archive.writestr("weights.npy", npy(values))


def as_safetensors(path: Path, values: Sequence[float]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    bias = b"\x80\x3f\x80\x3f"  # 1.0 twice in bfloat16
    tensors = {
        "__metadata__": {"format": "pt"},
        "weights": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]},
        "bias": {"dtype": "BF16", "shape": [2], "data_offsets": [len(data), len(data) + 4]},
    }
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data + bias)


class FloatStorage:
    """Stands for PyTorch's, which a pickle names and which is not imported here."""


class _Saving(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return ("storage", FloatStorage, "0", "cpu", 3) if isinstance(obj, FloatStorage) else None


def as_torch(path: Path, values: Sequence[float]) -> None:
    described = io.BytesIO()
    _Saving(described, protocol=2).dump({"weights": FloatStorage(), "step": 7})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("last/data.pkl", described.getvalue())
        archive.writestr("last/data/0", struct.pack(f"<{len(values)}f", *values))


FORMATS: list[tuple[str, Write, str]] = [
    ("a.json", as_json, "weights[]"),
    ("a.jsonl", as_jsonl, "[].loss"),
    ("a.csv", as_csv, "loss"),
    ("a.npy", as_npy, ""),
    ("a.npz", as_npz, "weights"),
    ("a.safetensors", as_safetensors, "weights"),
    ("a.pt", as_torch, "tensor 0"),
]
each_format = pytest.mark.parametrize(("name", "write", "where"), FORMATS, ids=[name for name, _, _ in FORMATS])


@each_format
def test_the_largest_difference_is_found_in(both: tuple[Path, Path], name: str, write: Write, where: str) -> None:
    write(both[0] / name, [1.0, 2.0, 4.0])
    write(both[1] / name, [1.0, 2.5, 4.25])
    found = compare(*both, name)
    assert found == FileChange(name, FileFault.NUMBERS, largest=0.5, relative=0.125, where=where)


@each_format
def test_another_length_is_another_content_in(both: tuple[Path, Path], name: str, write: Write, where: str) -> None:
    write(both[0] / name, [1.0, 2.0, 4.0])
    write(both[1] / name, [1.0])
    found = compare(*both, name)
    assert found.fault is FileFault.CONTENT
    assert found.detail


@each_format
def test_a_file_that_is_cut_off_is_another_content_in(
    both: tuple[Path, Path], name: str, write: Write, where: str
) -> None:
    write(both[0] / name, [1.0, 2.0, 4.0])
    write(both[1] / name, [1.0, 2.0, 4.0])
    (both[1] / name).write_bytes((both[1] / name).read_bytes()[:9])
    assert compare(*both, name).fault is FileFault.CONTENT


def test_a_file_of_only_one_run_is_missing_or_extra(both: tuple[Path, Path]) -> None:
    (both[0] / "a").write_text("x")
    (both[1] / "b").write_text("x")
    assert compare(*both, "a").fault is FileFault.MISSING
    assert compare(*both, "b").fault is FileFault.EXTRA


def test_text_that_differs_is_no_matter_of_numbers(both: tuple[Path, Path]) -> None:
    (both[0] / "a.json").write_text('{"best": "epoch 3"}')
    (both[1] / "a.json").write_text('{"best": "epoch 2"}')
    assert compare(*both, "a.json").detail == "the text of `best` differs"


def test_a_format_that_nobody_can_read_is_reported_as_one(both: tuple[Path, Path]) -> None:
    (both[0] / "a.bin").write_bytes(b"\0\1")
    (both[1] / "a.bin").write_bytes(b"\0\2")
    found = compare(*both, "a.bin")
    assert (found.fault, found.detail) == (FileFault.CONTENT, "unsupported format")


def test_numbers_that_are_written_differently_are_the_same(both: tuple[Path, Path]) -> None:
    (both[0] / "a.json").write_text("[1.0, 2]")
    (both[1] / "a.json").write_text("[1.0,2]")
    assert "the numbers are identical" in compare(*both, "a.json").detail


def test_what_a_pickle_asks_for_is_not_executed(both: tuple[Path, Path], tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    for folder in both:
        with zipfile.ZipFile(folder / "a.pt", "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps([Trap(), str(folder)]))
    compare(*both, "a.pt")
    assert not (tmp_path / "sprung").exists()


def test_only_what_differs_is_looked_at_and_event_files_never() -> None:
    ours = {"same": "1", "other": "1", "gone": "1", "events.out.tfevents.1": "1"}
    theirs = {"same": "1", "other": "2", "new": "1", "events.out.tfevents.2": "1"}
    assert changed(ours, theirs) == ["gone", "new", "other"]


def test_numbers_in_plain_text_are_compared_if_the_words_are_the_same(both: tuple[Path, Path]) -> None:
    (both[0] / "result.txt").write_text("rank 3: loss 0.125, accuracy=9.5e-1\n")
    (both[1] / "result.txt").write_text("rank 3: loss 0.126, accuracy=9.5e-1\n")
    found = compare(*both, "result.txt")
    assert (found.fault, found.where) == (FileFault.NUMBERS, "number 2")
    assert found.relative == pytest.approx(0.008)
    (both[1] / "result.txt").write_text("rank 3: cost 0.125, accuracy=9.5e-1\n")
    assert compare(*both, "result.txt").fault is FileFault.CONTENT
