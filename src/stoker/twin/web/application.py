"""All HTTPS requests to the twin: which handler gets which path, and the faults of the weather."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.access import tokens
from stoker.twin.arm.requests import dispatch
from stoker.twin.arm.requests.ask import ArmAnswer, Ask
from stoker.twin.blob.service import BlobService
from stoker.twin.refusal import Refused, invalid, throttled
from stoker.twin.state import CloudState
from stoker.twin.time import weather
from stoker.twin.web import lenient, login, retail
from stoker.twin.web.control import TwinControl
from stoker.twin.web.server import Response, WebRequest
from stoker.twin.world import TwinWorld

log = logging.getLogger("stoker.twin")

_THROTTLED_S = 2


class Application:
    """A callable that handles requests. `log` contains the newest of them, for tests and for people."""

    def __init__(self, world: TwinWorld, control_token: str, blob: BlobService | None = None) -> None:
        self._world = world
        self._log: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._control = TwinControl(world, control_token, self._log, blob)
        self._lock = threading.Lock()

    def __call__(self, request: WebRequest) -> Response:
        first = request.path.strip("/").split("/")[0].lower()
        if first == "twin":
            return self._control(request)
        if first == "api":
            return retail.answer(self._world.cloud, request, self._world.clock.now(), self._world.clock.wall)
        if first == "v1.0":
            return login.answer_graph(self._world.cloud, request, time.time())
        if (answer := login.answer(self._world.cloud, request)) is not None:
            return answer
        response = self._arm(request)
        with self._lock:
            told = {"method": request.method, "path": request.path, "query": dict(request.query)}
            self._log.append({**told, "status": response.status})
        return response

    def _arm(self, request: WebRequest) -> Response:
        trouble = self._world.change(lambda cloud, _: _trouble(cloud, request))
        if trouble.kind == "throttle":
            return _refused(throttled(max(1, int(self._world.clock.real_s(trouble.seconds)))))
        if trouble.kind == "error":
            return _refused(Refused(trouble.status, trouble.code, trouble.message))
        response = self._answered(request)
        if trouble.kind == "slow":
            return replace(response, wait_s=self._world.clock.real_s(trouble.seconds))
        return replace(response, lost=True) if trouble.kind == "lose" else response

    def _answered(self, request: WebRequest) -> Response:
        try:
            answer = self._world.change(lambda cloud, now: self._decided(cloud, request, now))
        except Refused as refusal:
            return _refused(refusal)
        return Response(answer.status, answer.body, {**answer.headers, **_LEFT})

    def _decided(self, cloud: CloudState, request: WebRequest, now: float) -> tuple[CloudState, ArmAnswer]:
        claims = tokens.read(cloud, request.headers.get("authorization", ""), time.time())
        target = ids.read(request.path)
        ask = Ask(
            method=request.method,
            path=request.path,
            target=target,
            now=now,
            wall=self._world.clock.wall,
            query=request.query,
            body=_body(request),
            claims=claims,
            base=request.base,
            number=cloud.requests,
        )
        return dispatch.answer(cloud, ask)


_LEFT = {"x-ms-ratelimit-remaining-subscription-reads": "11999"}


def _trouble(cloud: CloudState, request: WebRequest) -> tuple[CloudState, weather.OrderedFault]:
    """The fault of this request: one ordered by a test, else the weather's."""
    number = cloud.requests + 1
    kinds = ("throttle", "slow", "lose", "error")
    fault, left = weather.take(cloud.faults, kinds, request.method, request.path)
    if fault is None:
        word = cloud.weather.trouble(number)
        fault = weather.OrderedFault(word, seconds=cloud.weather.slow_s if word == "slow" else _THROTTLED_S)
    return replace(cloud, requests=number, faults=left), fault


def _body(request: WebRequest) -> dict[str, Any]:
    if not request.body:
        return {}
    try:
        body = lenient.loads(request.body.decode())
    except ValueError as error:
        raise invalid(
            f"The request content was invalid and could not be deserialized: '{error}'.", "InvalidRequestContent"
        ) from error
    if not isinstance(body, dict):
        raise invalid("The request content was invalid: expected an object.", "InvalidRequestContent")
    return body


def _refused(refusal: Refused) -> Response:
    headers = {"x-ms-failure-cause": "gateway", **refusal.headers}
    return Response(refusal.status, {"error": refusal.body()}, headers)
