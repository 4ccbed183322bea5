"""The blocks of numbers in a state: tensors of PyTorch, arrays of NumPy, `array.array` and bytes.

One leaf is described by what safetensors knows (dtype, shape) and by what it takes to make the same object again.
PyTorch and NumPy are looked up among the modules that are already there, never imported for their own sake.
"""

from __future__ import annotations

import ctypes
import math
import sys
from array import array
from dataclasses import dataclass
from importlib import import_module
from typing import Any

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
    """The same again, in memory of its own."""
    if leaf.like == "torch":
        return value.detach().clone()
    return value.copy() if leaf.like == "numpy" else value[:]


def make(leaf: Leaf, data: Buffer, *, copy: bool = True) -> Any:
    """The value again. Without `copy` a tensor or array lives in `data`, which must then be writable."""
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
