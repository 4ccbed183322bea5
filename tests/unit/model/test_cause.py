"""Causes: one word for one thing, beside everything that a person reads as a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from stoker import errors
from stoker.client.api.connection import error_from
from stoker.errors import Conflict, StokerError
from stoker.model.cause import Cause
from stoker.server.api.answers import failed

SOURCE = Path(errors.__file__).parent


def test_every_cause_is_given_somewhere_and_has_a_meaning() -> None:
    given = {word for path in SOURCE.rglob("*.py") for word in re.findall(r"Cause\.([A-Z_]+)\b", path.read_text())}
    assert given == {one.name for one in Cause}
    assert all(one.meaning and re.fullmatch(r"[a-z]+(-[a-z]+)*", one) for one in Cause)


def test_no_cause_is_the_code_of_an_error() -> None:
    codes = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, StokerError)}
    assert not codes & set(Cause)


def test_the_engine_gives_no_run_a_reason_without_its_cause() -> None:
    def lacking(source: str) -> list[int]:
        return [
            call.lineno
            for call in ast.walk(ast.parse(source))
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "replace"
            and {"reason"} == {"reason", "cause"} & {one.arg for one in call.keywords}
        ]

    assert lacking('replace(run, reason="x")\nreplace(run, reason="x", cause=Cause.LOST)') == [1]
    places = [*SOURCE.glob("engine/**/*.py"), *SOURCE.glob("server/**/*.py")]
    assert {path.name: found for path in places if (found := lacking(path.read_text()))} == {}


def test_the_cause_of_an_error_reaches_the_client() -> None:
    made = failed(Conflict("`ants` is kept", hint="release it", cause=Cause.NODE_KEPT))
    error = error_from(made.status_code, bytes(made.body), "http://server")
    assert (type(error), error.code, error.cause) == (Conflict, "conflict", Cause.NODE_KEPT)
