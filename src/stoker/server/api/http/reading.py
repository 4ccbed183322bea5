"""The body of a request: bounded before it is parsed, then read through types."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from fastapi import Request

from stoker.errors import BadInput, TooLarge
from stoker.model.job.fields import Problems
from stoker.server.api.http.kinds import kind_for
from stoker.server.rounds.outside import call

T = TypeVar("T")

_INLINE_BYTES = 64 << 10  # what is parsed without leaving the event loop: less than a millisecond
_DEEPEST = 32
_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*+"?')  # the end is optional: never searched for twice
_PAIRS = re.compile(rb"\[\]|\{\}")
_REST = bytes(set(range(256)) - set(b'[]{}"'))


@dataclass(frozen=True, slots=True)
class Bounds:
    """`values` are the commas and brackets of a body: each becomes an object in memory."""

    size_bytes: int = 4 << 20
    values: int = 200_000


async def body(request: Request, of: type[T], bounds: Bounds = Bounds()) -> T:  # noqa: B008 - it is frozen
    """The request's body as this dataclass. Raises TooLarge, JobInvalid, and BadInput naming the field."""
    data = await read_bytes(request, bounds.size_bytes)
    if len(data) <= _INLINE_BYTES:
        return parse(of, data, bounds)
    return await call(parse, of, data, bounds)


async def read_bytes(request: Request, most: int) -> bytes:
    data = bytearray()
    too_large = TooLarge(f"the body is larger than {most:,} bytes, the maximum of this call")
    if int(request.headers.get("content-length", "0")) > most:
        raise too_large
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise too_large
    return bytes(data)


def parse(of: type[T], data: bytes, bounds: Bounds) -> T:
    check_json(data, bounds)
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # A syntax error tells where it is; any other message might repeat what was sent.
        where = f": {error.msg} at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInput(f"the body is not JSON{where}") from None
    try:
        read: T = kind_for(of).read(value, "")
    except Problems as found:
        raise BadInput("; ".join(str(problem) for problem in found.problems[:20])) from None
    return read


def check_json(data: bytes, bounds: Bounds) -> None:
    """Linear in its size, and without parsing it: a few bytes of JSON may become a hundred in memory."""
    if sum(data.count(one) for one in (b",", b"[", b"{")) > bounds.values:
        raise TooLarge(f"the body has more than {bounds.values:,} values, the maximum of this call")
    # What is left of a text without brackets is its two quotes; most go at once, and no two others are neighbours.
    marks = _ESCAPES.sub(b"", data).translate(None, _REST).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", marks)
    for _ in range(_DEEPEST):
        if not brackets:
            return
        brackets = _PAIRS.sub(b"", brackets)
    if len(brackets) > _DEEPEST:  # a few that do not match are left to the parser, which tells where
        raise BadInput(f"the body is nested more than {_DEEPEST} levels deep, or its brackets do not match")


def _refuse_constant(_word: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
