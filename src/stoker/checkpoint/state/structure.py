"""A state as JSON and blocks of numbers: every value comes back as it was, and nothing is pickled.

JSON has fewer types than Python. What it lacks is written as an object with the key `$`, so that int keys, tuples,
infinite numbers and dtypes survive.

Tensors that are spread over ranks, as `fully_shard` makes them: every rank saves its part of each.

A rank puts its part back where it has the same ranks around it. Whoever has none of them can put the parts together.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stoker.errors import DoesNotFit, NotStorable

Words = dict[str, Any]  # what it takes to make a tensor of its part again, as JSON
Whole = Callable[[Words, Any], Any]  # of the words and the part of this rank, the tensor

_meshes: dict[str, Any] = {}  # those that tensors of this process are spread over, by what is said of them


def is_spread(value: Any) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def take_apart(value: Any) -> tuple[Any, Words]:
    """The part of this rank, which is the very memory that training changes. A TypeError says why there is none."""
    mesh = _describe(value.device_mesh)
    _meshes[json.dumps(mesh)] = value.device_mesh
    words = {
        "mesh": mesh,
        "placements": [_dimension(one) for one in value.placements],
        "shape": list(value.shape),
        "stride": list(value.stride()),
    }
    return value._local_tensor, words


def on_this_rank(words: Words, part: Any) -> Any:
    """The tensor as it was, of which this rank has a part."""
    tensors = import_module("torch.distributed.tensor")
    mesh = _meshes.get(json.dumps(words["mesh"]))
    if mesh is None:
        raise DoesNotFit(
            "a tensor of the checkpoint is sharded over ranks differently than all tensors of this code",
            hint="resume with the same number of ranks, and shard the model before you create the `Checkpoint`",
        )
    placements = [tensors.Replicate() if dim is None else tensors.Shard(dim) for dim in words["placements"]]
    shape, stride = sys.modules["torch"].Size(words["shape"]), tuple(words["stride"])
    return tensors.DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def together(words: Words, parts: list[Any]) -> Any:
    """The tensor, of the parts of all ranks in their order."""
    torch = import_module("torch")

    def join(ranks: Any, placements: list[int | None]) -> Any:
        """Of the ranks of a mesh, or of a row of it: it was cut along the first way first."""
        if not placements:
            return parts[ranks]
        dim, *within = placements
        if dim is None:
            return join(ranks[0], within)
        return torch.cat([join(row, within) for row in ranks], dim)

    return join(words["mesh"]["ranks"], words["placements"]).reshape(words["shape"])


def _describe(mesh: Any) -> Words:
    names = mesh.mesh_dim_names
    return {"device": mesh.device_type, "ranks": mesh.mesh.tolist(), "names": list(names) if names else None}


def _dimension(placement: Any) -> int | None:
    """The dimension along which it is sharded; None if every rank has the whole tensor."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind != "Shard":
        raise TypeError(f"a tensor that is sharded over ranks as {placement}")
    return int(placement.dim)


Json = Any
_MARK = "$"
_PLAIN = frozenset({int, str, bool, type(None)})


class Flattener:
    """Takes a state apart. `leaves` and `values` then hold its blocks of numbers, by the path they were found at.

    A tensor that occurs twice, such as tied weights, is held once. `last` is what was taken apart before: a tensor that
    is still in its place need not be described again, which is most of the work for many small ones.
    """

    def __init__(self, last: Flattener | None = None) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.values: dict[str, Any] = {}
        self._known: dict[int, list[tuple[Leaf, str]]] = {}
        self._last_values = last.values if last else {}
        self._last_leaves = last.leaves if last else {}

    def copied(self, most_bytes: int) -> dict[str, Any] | None:
        """Copies of all values so far, in fresh memory; None where there are more bytes than that."""
        if sum(leaf.size_bytes for leaf in self.leaves.values()) > most_bytes:
            return None
        return {name: duplicate(self.values[name], leaf) for name, leaf in self.leaves.items()}

    def flatten(self, value: Any, path: str) -> Json:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {_MARK: "float", "is": repr(value)}
        if kind is dict or kind is OrderedDict:
            return self._mapping(value, path, ordered=kind is OrderedDict)
        if kind is list:
            return [self.flatten(item, f"{path}/{place}") for place, item in enumerate(value)]
        if self._last_values.get(path) is value and self._last_leaves[path].shape == getattr(value, "shape", ()):
            return self._leaf(value, self._last_leaves[path], path)
        try:
            if is_spread(value):
                part, words = take_apart(value)
                return {_MARK: "spread", "of": self.flatten(part, path), **words}
            leaf = describe(value)
        except TypeError as error:
            raise _refusal(path, str(error)) from None
        return self._leaf(value, leaf, path) if leaf else self._rare(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: str, *, ordered: bool) -> Json:
        if not ordered and all(type(key) is str for key in value) and _MARK not in value:
            return {key: self.flatten(item, f"{path}/{key}") for key, item in value.items()}
        items = [
            [self.flatten(key, f"{path}/{key}"), self.flatten(item, f"{path}/{key}")] for key, item in value.items()
        ]
        return {_MARK: "ordered" if ordered else "dict", "items": items}

    def _leaf(self, value: Any, leaf: Leaf, path: str) -> Json:
        # A view with gaps may begin where another tensor does, and be of its shape, without being the same.
        whole = leaf.like == "torch" and (leaf.detail is not None or value.is_contiguous())
        address = value.data_ptr() if whole and leaf.size_bytes else 0
        beginning_here = self._known.setdefault(address, []) if address else []
        for known, name in beginning_here:
            if known == leaf:
                return {_MARK: "leaf", "is": name}
        name = path
        while name in self.leaves:  # the keys 1 and "1" have one path
            name += "~"
        self.leaves[name], self.values[name] = leaf, value
        beginning_here.append((leaf, name))
        return {_MARK: "leaf", "is": name}

    def _rare(self, value: Any, path: str) -> Json:
        kind = type(value)
        if kind is tuple or kind is set or kind is frozenset:
            items = sorted(value, key=repr) if kind is not tuple else value
            return {_MARK: kind.__name__, "items": [self.flatten(item, f"{path}/{n}") for n, item in enumerate(items)]}
        if kind is complex:
            return {_MARK: "complex", "is": repr(value)}
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None:
            if kind is torch.Size:
                return {_MARK: "size", "items": list(value)}
            if kind is torch.dtype:
                return {_MARK: "dtype", "is": str(value).removeprefix("torch.")}
            if kind is torch.device:
                return {_MARK: "device", "is": str(value)}
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
            return {_MARK: "numpy", "dtype": value.dtype.str, "is": value.tobytes().hex()}
        raise _refusal(path, f"of type {kind.__module__}.{kind.__qualname__}")


def _refusal(path: str, what: str) -> NotStorable:
    return NotStorable(
        f"`{path}` cannot be stored exactly: it is {what}",
        hint="give it `state_dict` and `load_state_dict` and pass it to `Checkpoint(name=…)`, or use numbers, "
        "strings, lists, dicts and tensors instead, or omit it",
    )


def restore(form: Json, leaf: Callable[[str], Any], whole: Whole = on_this_rank) -> Any:
    """The inverse: `leaf` gives the block of numbers of a name, `whole` the tensor that it is this rank's part of."""
    if isinstance(form, list):
        return [restore(item, leaf, whole) for item in form]
    if not isinstance(form, dict):
        return form
    mark = form.get(_MARK)
    if mark is None:
        return {key: restore(item, leaf, whole) for key, item in form.items()}
    if mark == "leaf":
        return leaf(form["is"])
    if mark == "spread":
        return whole(form, leaf(form["of"]["is"]))
    if mark in ("dict", "ordered"):
        pairs = [(restore(key, leaf, whole), restore(item, leaf, whole)) for key, item in form["items"]]
        return OrderedDict(pairs) if mark == "ordered" else dict(pairs)
    if "items" in form:
        return _COLLECTIONS[mark]([restore(item, leaf, whole) for item in form["items"]])
    return _SCALARS[mark](form)


def _torch(form: Json) -> Any:
    torch = import_module("torch")
    return getattr(torch, form["is"]) if form[_MARK] == "dtype" else torch.device(form["is"])


def _numpy(form: Json) -> Any:
    return import_module("numpy").frombuffer(bytes.fromhex(form["is"]), dtype=form["dtype"])[0]


_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": lambda items: import_module("torch").Size(items),
}
_SCALARS: dict[str, Callable[[Json], Any]] = {
    "float": lambda form: float(form["is"]),
    "complex": lambda form: complex(form["is"]),
    "dtype": _torch,
    "device": _torch,
    "numpy": _numpy,
}


Buffer = memoryview

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
_TORCH = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "int32": "I32",
    "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "complex128": "C128",
}  # fmt: skip
_FROM_TORCH = {f"torch.{name}": code for name, code in _TORCH.items()}
_TO_TORCH = {code: name for name, code in _TORCH.items()}
_ARRAY = {code: kind + str(8 * array(code).itemsize) for code, kind in zip("bBhHiIlLqQfd", "IUIUIUIUIUFF", strict=True)}


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is said of one block of numbers. `like` is the library it belongs to: torch, numpy, bytes or array.

    `detail` is what the library needs besides: a dtype code of `array` or NumPy, or the strides of a tensor that is
    not in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    like: str
    detail: Any = None

    @property
    def size_bytes(self) -> int:
        return SIZES[self.dtype] * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def describe(value: Any) -> Leaf | None:
    """None: this is not a block of numbers. A TypeError says why one cannot be stored."""
    kind = type(value)
    if kind is bytes or kind is bytearray:
        return Leaf("U8", (len(value),), kind.__name__)
    if kind is array:
        if value.typecode not in _ARRAY:
            raise TypeError(f"an array of type `{value.typecode}`")
        return Leaf(_ARRAY[value.typecode], (len(value),), "array", value.typecode)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _describe_tensor(value, torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        name = value.dtype.name
        if name not in _TORCH or value.dtype.byteorder not in "=|<":
            raise TypeError(f"a NumPy array of dtype {value.dtype}")
        return Leaf(_TORCH[name], value.shape, "numpy")
    return None


def _describe_tensor(value: Any, torch: Any) -> Leaf:
    dtype = _FROM_TORCH.get(str(value.dtype))
    if dtype is None or value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"a tensor of {value.dtype} with layout {value.layout}")
    if value.device.type == "meta":
        raise TypeError("a tensor on the device `meta`, which has no values")
    shape = tuple(value.shape)
    if value.is_contiguous() or 0 in shape:
        return Leaf(dtype, shape, "torch")
    stride = value.stride()
    dense = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) + 1 == math.prod(shape)
    return Leaf(dtype, shape, "torch", tuple(stride) if dense else None)


def view(value: Any, leaf: Leaf) -> Buffer:
    """The bytes of a value in C order of its memory, without a copy. A tensor must be in main memory."""
    if leaf.size_bytes == 0:
        return memoryview(b"")
    if leaf.like == "torch":
        # By address, because a tensor of bfloat16 has no NumPy form, and NumPy may not be there at all.
        return memoryview((ctypes.c_char * leaf.size_bytes).from_address(value.data_ptr())).cast("B")
    if leaf.like == "numpy":
        return memoryview(value.reshape(-1).view("uint8"))
    return memoryview(value).cast("B")


def duplicate(value: Any, leaf: Leaf) -> Any:
    """A copy in memory of its own."""
    if leaf.like == "torch":
        return value.detach().clone()
    return value.copy() if leaf.like == "numpy" else value[:]


def make(leaf: Leaf, data: Buffer, *, copy: bool = True) -> Any:
    """The value from its bytes. Without `copy` a tensor or array uses the memory of `data`, which must be writable."""
    if leaf.like == "torch":
        return _make_tensor(leaf, data, copy=copy)
    if leaf.like == "numpy":
        numpy = import_module("numpy")
        made = numpy.frombuffer(data, dtype=_numpy_dtype(numpy, leaf.dtype)).reshape(leaf.shape)
        return made.copy() if copy else made
    if leaf.like == "array":
        numbers = array(leaf.detail)
        numbers.frombytes(data)
        return numbers
    return bytearray(data) if leaf.like == "bytearray" else bytes(data)


def _numpy_dtype(numpy: Any, dtype: str) -> Any:
    return import_module("ml_dtypes").bfloat16 if dtype == "BF16" else numpy.dtype(_TO_TORCH[dtype])


def torch_dtype(leaf: Leaf) -> Any:
    return getattr(import_module("torch"), _TO_TORCH[leaf.dtype])


def _make_tensor(leaf: Leaf, data: Buffer, *, copy: bool) -> Any:
    torch = import_module("torch")
    if leaf.size_bytes == 0:
        return torch.empty(leaf.shape, dtype=torch_dtype(leaf))
    flat = torch.frombuffer(data, dtype=torch_dtype(leaf))
    made = flat.as_strided(leaf.shape, leaf.detail) if leaf.detail else flat.reshape(leaf.shape)
    return made.clone(memory_format=torch.preserve_format) if copy else made
