"""A connection to a server: JSON in and out, and every failure as one of Stoker's errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlencode

from stoker import errors
from stoker.client.api.http import UNIX, HttpAnswer, Line, LineBroken, LineRefused
from stoker.errors import Denied, JobInvalid, Problem, ServerUnavailable, StokerError
from stoker.model.workspace.home import proof

Query = Mapping[str, str | int | float | bool | None]  # None omits the parameter

_CONNECT_S = 10.0
_SILENCE_S = 60.0  # after which a silent stream counts as dead; its reader reconnects at its offset
_PATIENCE_S = 15.0  # how long a server that has responded before may be unavailable
_PAUSE_S = 0.1
_TRIES = 3  # for a truncated response
_LONGEST_PROOF = 1024


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and its token."""

    url: str
    token: str = field(default="", repr=False)
    pid: int = 0
    version: str = ""
    http: str = ""  # the URL of its port, if it listens on one

    @property
    def proves_itself(self) -> bool:
        """Whether TLS or the owner of its socket authenticates it. The scheme may be in capitals."""
        return self.url.lower().startswith(("https:", UNIX))


class Connection:
    """May be used from several threads. Keeps sockets open between calls.

    `reconnect` returns a new address when this one does not respond; it may start a server. Without it, a server that
    has responded before gets some time to come back.
    """

    def __init__(self, address: ServerAddress, *, reconnect: Callable[[], ServerAddress] | None = None) -> None:
        self.address = address
        self._reconnect = reconnect
        self._idle: list[tuple[ServerAddress, Line]] = []
        self._has_answered = False

    def get(self, path: str, query: Query | None = None, *, timeout_s: float = 30.0) -> Any:
        """Retried over a server restart."""
        return self._json("GET", path + _query(query), repeat=True, timeout_s=timeout_s)

    def post(self, path: str, body: Any = None, *, repeat: bool = True, timeout_s: float = 30.0) -> Any:
        """With `repeat` it may be sent twice if the first response was lost."""
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        return self._json("POST", path, data, repeat=repeat, timeout_s=timeout_s)

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path, repeat=False, timeout_s=60.0)

    def upload(self, path: str, chunks: Iterable[bytes]) -> Any:
        """Sends a body of unknown length. Never retried: the chunks are gone."""
        return self._json("POST", path, chunks, repeat=False, timeout_s=600.0)

    def stream(
        self, path: str, query: Query | None = None, *, asking: Any = None
    ) -> tuple[Mapping[str, str], Iterator[bytes]]:
        """The headers, with lower-case names, and the body as it arrives. A truncated body is ServerUnavailable. With
        `asking`, which is sent once, it is the response to a POST."""
        data = None if asking is None else json.dumps(asking, separators=(",", ":")).encode()
        method = "GET" if data is None else "POST"
        line, answer = self._ask(method, path + _query(query), data, repeat=data is None, timeout_s=_SILENCE_S)
        if answer.status >= 400:
            self._refused(answer.status, self._whole(line, answer))
        return answer.headers, self._pieces(line, answer)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def _json(
        self, method: str, target: str, body: bytes | Iterable[bytes] | None = None, *, repeat: bool, timeout_s: float
    ) -> Any:
        for tries_left in range(_TRIES if repeat else 1, 0, -1):
            line, answer = self._ask(method, target, body, repeat=repeat, timeout_s=timeout_s)
            try:
                data = self._whole(line, answer)
                break
            except ServerUnavailable:  # restarted during the response
                if tries_left == 1:
                    raise
        if answer.status >= 400:
            self._refused(answer.status, data)
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise self._unavailable("it is not a Stoker server (no JSON in its response)") from None

    def _ask(
        self, method: str, target: str, body: bytes | Iterable[bytes] | None, *, repeat: bool, timeout_s: float
    ) -> tuple[Line, HttpAnswer]:
        """One response, whatever it takes: another socket, a wait, another address."""
        give_up = time.monotonic() + _PATIENCE_S
        denied = False
        while True:
            line = None
            try:
                line = self._line()
                answer = line.request(method, target, self._headers(body), body, timeout_s=timeout_s)
            except LineRefused as error:
                self._elsewhere(error, give_up)
                continue
            except LineBroken as error:
                if not repeat or time.monotonic() > give_up:
                    raise self._unavailable(str(error)) from error
                time.sleep(_PAUSE_S)
                continue
            if answer.status == 401 and self._reconnect and not denied:
                # Another program may have taken the port of a server that is gone: look up ours again.
                denied = True
                line.close()
                self.address = self._reconnect()
                continue
            self._has_answered = True
            return line, answer

    def _line(self) -> Line:
        while self._idle:
            address, line = self._idle.pop()
            if address == self.address and not line.stale():
                return line
            line.close()
        line = Line(self.address.url, _CONNECT_S)
        if self.address.token and not self.address.proves_itself:
            self._check_proof(line)
        return line

    def _check_proof(self, line: Line) -> None:
        """Another user of that computer may have taken the port of a server that has ended. Raises Refused: no secret
        has been sent."""
        nonce, told = os.urandom(16).hex(), b""
        try:
            answer = line.request("GET", f"/v1/proof?nonce={nonce}", {}, timeout_s=_CONNECT_S)
            for piece in answer.body:
                told += piece
                if len(told) > _LONGEST_PROOF:
                    break
            proven = json.loads(told)["proof"] == proof(self.address.token, nonce)
        except (LineBroken, ValueError, LookupError, TypeError):
            proven = False
        if not proven:
            line.close()
            raise LineRefused("the process that listens there does not know the token: nothing was sent")

    def _elsewhere(self, error: LineRefused, give_up: float) -> None:
        before = self.address
        if self._reconnect:
            self.address = self._reconnect()
        if self.address != before:
            return
        if not self._has_answered or time.monotonic() > give_up:
            raise self._unavailable(str(error)) from error
        time.sleep(_PAUSE_S)

    def _headers(self, body: bytes | Iterable[bytes] | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.address.token}"} if self.address.token else {}
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        return headers

    def _whole(self, line: Line, answer: HttpAnswer) -> bytes:
        return b"".join(self._pieces(line, answer))

    def _pieces(self, line: Line, answer: HttpAnswer) -> Iterator[bytes]:
        whole = False
        try:
            yield from answer.body
            whole = True
        except LineBroken as error:
            raise self._unavailable(str(error)) from error
        finally:
            if whole and line.reusable:
                self._idle.append((self.address, line))
            else:
                line.close()

    def _unavailable(self, why: str) -> ServerUnavailable:
        hint = "stoker server status" if self._reconnect else "check STOKER_SERVER, and that the server is running"
        return ServerUnavailable(f"the server at {self.address.url} cannot be reached: {why}", hint=hint)

    def _refused(self, status: int, data: bytes) -> NoReturn:
        raise error_from(status, data, self.address.url)


def error_from(status: int, data: bytes, url: str) -> StokerError:
    """The error in a server's response, as the class with its code."""
    try:
        told = json.loads(data)["error"]
        code, message, hint = str(told["code"]), str(told["message"]), str(told.get("hint") or "")
        cause, problems = str(told.get("cause") or ""), [_problem(one) for one in told.get("problems") or ()]
    except (ValueError, LookupError, TypeError, AttributeError):
        if status == 401:
            return Denied(f"the server at {url} does not accept this token", hint="check STOKER_TOKEN")
        text = data[:200].decode(errors="replace").strip().partition("\n")[0]
        return StokerError(f"the server at {url} returned {status}{f': {text}' if text else ''}")
    of = _by_code().get(code, StokerError)
    error = JobInvalid(problems, hint=hint) if of is JobInvalid else of(message, hint=hint)
    error.code, error.cause = code, cause
    return error


def _problem(told: Mapping[str, Any]) -> Problem:
    field, found, expected, nearest = (str(told.get(key) or "") for key in ("field", "found", "expected", "nearest"))
    return Problem(field, found, expected, nearest)


def _by_code() -> dict[str, type[StokerError]]:
    return {of.code: of for of in vars(errors).values() if isinstance(of, type) and issubclass(of, StokerError)}


def _query(query: Query | None) -> str:
    given = {key: _word(value) for key, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _word(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
