"""Parsing responses of object stores. Standard library only: agents carry this file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from stoker.errors import StoreFailed
from stoker.stores.objects.wire import Reply


def listing(reply: Reply, place: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(reply.body)
    except ElementTree.ParseError as error:
        raise StoreFailed(f"`{place}` returned an unreadable listing: {error}") from None


def total_bytes(reply: Reply) -> int:
    """The size of the whole object, from a response about a part."""
    _, _, total = reply.headers.get("content-range", "").rpartition("/")
    if total.isdigit():
        return int(total)
    return int(reply.headers.get("content-length", len(reply.body)))


def within(body: bytes, tag: str) -> str:
    """The text between the first such tags; empty where there are none."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
    return found[1].decode(errors="replace").strip() if found else ""
