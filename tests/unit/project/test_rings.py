"""Tests in `tests/unit` are pure: no server listens there, nobody waits, and nothing far away is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1]
FILES = sorted(UNIT.rglob("*.py"))
SERVERS = {"HTTPServer", "ThreadingHTTPServer", "TCPServer", "create_server", "create_connection"}
MOST_SLEEP_S = 0.1  # between two looks at what a thread does


def impure(source: str) -> Iterator[str]:
    """What belongs in another ring, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SERVERS:
            yield f"line {node.lineno}: {name} opens a socket"
        elif ast.unparse(node.func) == "time.sleep" and _is_long(node):
            yield f"line {node.lineno}: {ast.unparse(node)} waits"


def _is_long(call: ast.Call) -> bool:
    seconds = call.args[0] if call.args else None
    return isinstance(seconds, ast.Constant) and isinstance(seconds.value, int | float) and seconds.value > MOST_SLEEP_S


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(UNIT)))
def test_a_unit_test_opens_no_server_and_waits_for_nobody(file: Path) -> None:
    found = list(impure(file.read_text()))
    assert not found, f"move it to tests/integration: {', '.join(found)}"


def test_what_is_not_pure_is_found() -> None:
    source = "import time\ntime.sleep(0.01)\ntime.sleep(1)\nwith socket.create_server(('127.0.0.1', 0)): pass\n"
    assert {one.partition(":")[0] for one in impure(source)} == {"line 3", "line 4"}
