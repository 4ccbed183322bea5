"""Everything the twin answers over HTTPS: who answers which path, and what the weather does to it on the way."""

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
from stoker.twin.arm.requests.ask import Answer, Ask
from stoker.twin.blob.service import BlobService
from stoker.twin.refusal import Refused, invalid, throttled
from stoker.twin.state import Cloud
from stoker.twin.time import weather
from stoker.twin.web import graph, lenient, login, retail
from stoker.twin.web.control import Control
from stoker.twin.web.server import Request, Response
from stoker.twin.world import World

log = logging.getLogger("stoker.twin")

_THROTTLED_S = 2


class Application:
    """A callable that answers requests. `log` has the newest of them, for tests and for people."""

    def __init__(self, world: World, control_token: str, blob: BlobService | None = None) -> None:
        self._world = world
        self._log: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._control = Control(world, control_token, self._log, blob)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Response:
        first = request.path.strip("/").split("/")[0].lower()
        if first == "twin":
            return self._control(request)
        if first == "api":
            return retail.answer(self._world.cloud, request, self._world.clock.now(), self._world.clock.wall)
        if first == "v1.0":
            return graph.answer(self._world.cloud, request, time.time())
        if (answer := login.answer(self._world.cloud, request)) is not None:
            return answer
        response = self._arm(request)
        with self._lock:
            told = {"method": request.method, "path": request.path, "query": dict(request.query)}
            self._log.append({**told, "status": response.status})
        return response

    def _arm(self, request: Request) -> Response:
        trouble = self._world.change(lambda cloud, _: _trouble(cloud, request))
        if trouble.kind == "throttle":
            return _refused(throttled(max(1, int(self._world.clock.real_s(trouble.seconds)))))
        if trouble.kind == "error":
            return _refused(Refused(trouble.status, trouble.code, trouble.message))
        response = self._answered(request)
        if trouble.kind == "slow":
            return replace(response, wait_s=self._world.clock.real_s(trouble.seconds))
        return replace(response, lost=True) if trouble.kind == "lose" else response

    def _answered(self, request: Request) -> Response:
        try:
            answer = self._world.change(lambda cloud, now: self._decided(cloud, request, now))
        except Refused as refusal:
            return _refused(refusal)
        return Response(answer.status, answer.body, {**answer.headers, **_LEFT})

    def _decided(self, cloud: Cloud, request: Request, now: float) -> tuple[Cloud, Answer]:
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


def _trouble(cloud: Cloud, request: Request) -> tuple[Cloud, weather.Fault]:
    """What befalls this request: an order by hand, else the weather's."""
    number = cloud.requests + 1
    kinds = ("throttle", "slow", "lose", "error")
    fault, left = weather.take(cloud.faults, kinds, request.method, request.path)
    if fault is None:
        word = cloud.weather.trouble(number)
        fault = weather.Fault(word, seconds=cloud.weather.slow_s if word == "slow" else _THROTTLED_S)
    return replace(cloud, requests=number, faults=left), fault


def _body(request: Request) -> dict[str, Any]:
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
