"""Arrays in files, read with the standard library alone: NumPy, safetensors and PyTorch. No pickle is executed."""

from __future__ import annotations

import ast
import io
import json
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 16
_MOST_NUMBERS = 4_000_000  # per file; comparing more in plain Python would take minutes

_FORMATS = {  # by the names of safetensors; NumPy's and PyTorch's are translated to them
    "F64": "d",
    "F32": "f",
    "F16": "e",
    "BF16": "H",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
}
_NUMPY = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "b1": "BOOL"} | {
    f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)
}
_TORCH = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}


class ArraysUnreadable(Exception):
    """The numbers in a file cannot be compared; the text says why."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How much two arrays of the same name differ. `relative` is to the largest number in the first."""

    name: str
    largest: float
    relative: float


@dataclass(frozen=True, slots=True)
class _Array:
    dtype: str
    size_bytes: int
    open: Callable[[], BinaryIO]  # at its first byte


def gaps(first: Path, second: Path) -> Iterator[Gap]:
    """The arrays that differ. Raises Unreadable if the files contain no arrays, or different ones."""
    ours, theirs = _arrays(first), _arrays(second)
    if ours.keys() != theirs.keys():
        name = min(ours.keys() ^ theirs.keys())
        raise ArraysUnreadable(f"`{name}` is in only one of the two")
    left = _MOST_NUMBERS
    for name, one in ours.items():
        other = theirs[name]
        if (one.dtype, one.size_bytes) != (other.dtype, other.size_bytes):
            raise ArraysUnreadable(f"`{name}` has a different type or size")
        gap, looked_at = _gap(name, one, other, left)
        left -= looked_at
        if gap:
            yield gap


def _gap(name: str, one: _Array, other: _Array, most: int) -> tuple[Gap | None, int]:
    largest, scale, looked_at, differs = 0.0, 0.0, 0, False
    with one.open() as ours, other.open() as theirs:
        for offset in range(0, one.size_bytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, one.size_bytes - offset)
            left, right = ours.read(size), theirs.read(size)
            if left == right:
                continue
            differs = True
            if looked_at < most:
                pairs = list(zip(_decoded(left, one.dtype), _decoded(right, one.dtype), strict=True))
                looked_at += len(pairs)
                largest = max(largest, *(_apart(*pair) for pair in pairs))
                scale = max(scale, *(abs(value) for value, _ in pairs if math.isfinite(value)), 0.0)
    if not differs:
        return None, looked_at
    return Gap(name, largest, largest / scale if scale else float(largest > 0)), looked_at


def _apart(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    return abs(one - other) if one != other else 0.0


def _decoded(data: bytes, dtype: str) -> tuple[float, ...]:
    letter = _FORMATS[dtype]
    count = len(data) // struct.calcsize(letter)
    numbers = struct.unpack(f"<{count}{letter}", data)
    if dtype == "BF16":  # the upper half of a 32-bit float
        return struct.unpack(f"<{count}f", b"".join(b"\0\0" + number.to_bytes(2, "little") for number in numbers))
    return numbers


def _arrays(path: Path) -> dict[str, _Array]:
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    reader = readers.get(path.suffix.lower())
    if reader is None and zipfile.is_zipfile(path):
        reader = _torch
    if reader is None:
        raise ArraysUnreadable("unsupported format")
    try:
        return reader(path)
    except (ValueError, KeyError, struct.error, SyntaxError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ArraysUnreadable(f"not a readable {path.suffix} file: {error}") from None


def _npy(path: Path) -> dict[str, _Array]:
    with path.open("rb") as file:
        return {"": _numpy_array(file, path.stat().st_size, lambda: path.open("rb"))}


def _npz(path: Path) -> dict[str, _Array]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                name = info.filename.removesuffix(".npy")
                found[name] = _numpy_array(file, info.file_size, _member(path, info.filename))
    return found


def _numpy_array(file: Any, size_bytes: int, reopen: Callable[[], BinaryIO]) -> _Array:
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise ValueError("no NumPy header")
    width, letter = (2, "<H") if magic[6] == 1 else (4, "<I")
    (length,) = struct.unpack(letter, file.read(width))
    descr = ast.literal_eval(file.read(length).decode("latin-1"))["descr"]
    if not isinstance(descr, str) or descr[0] == ">":
        raise ValueError(f"an array of {descr}")
    start = 8 + width + length
    return _Array(_NUMPY[descr[1:]], size_bytes - start, _from(reopen, start))


def _safetensors(path: Path) -> dict[str, _Array]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("truncated")
        header = json.loads(file.read(length))
    found = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            if tensor["dtype"] not in _FORMATS:
                raise ValueError(f"`{name}` is of type {tensor['dtype']}")
            found[name] = _Array(tensor["dtype"], end - begin, _from(lambda: path.open("rb"), 8 + length + begin))
    return found


def _torch(path: Path) -> dict[str, _Array]:
    """The storages of a `torch.save` file, each with the type that the pickle beside them states."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if "data.pkl" not in names:
            raise ValueError("not a PyTorch archive")
        reading = _Inert(io.BytesIO(archive.read(names["data.pkl"])))
        reading.load()
        sizes = {name: archive.getinfo(whole).file_size for name, whole in names.items()}
    found = {}
    for key, dtype in reading.storages.items():
        member = f"data/{key}"
        found[f"tensor {key}"] = _Array(dtype, sizes[member], _member(path, names[member]))
    return found


class _Inert(pickle.Unpickler):
    """Builds nothing: every class named in the pickle is replaced by one without effect."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, str] = {}

    def find_class(self, _module: str, name: str) -> Any:
        return type(name, (_Nothing,), {})

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, *_ = pid
        self.storages[str(key)] = _TORCH[kind.__name__]
        return None


class _Nothing:
    def __init__(self, *args: Any, **named: Any) -> None: ...

    def __call__(self, *args: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...


def _member(path: Path, name: str) -> Callable[[], BinaryIO]:
    def reopen() -> BinaryIO:
        return zipfile.ZipFile(path).open(name)  # type: ignore[return-value]  # read is all that is asked of it

    return reopen


def _from(reopen: Callable[[], BinaryIO], start: int) -> Callable[[], BinaryIO]:
    def at() -> BinaryIO:
        file = reopen()
        file.read(start) if not file.seekable() else file.seek(start)
        return file

    return at
