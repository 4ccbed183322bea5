"""The SDKs' own transport on a session that records the traffic, or replays a recording."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict

from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.recording import TrafficRecorder, TrafficReplay, answered


def transport(account: Account) -> Any:
    """For any SDK client."""
    from azure.core.pipeline.transport import RequestsTransport

    verify = {"connection_verify": account.ca_file} if account.ca_file else {}
    session = Session()
    adapter = Replaying(TrafficReplay(Path(account.replay))) if account.replay else Noting(TrafficRecorder(account))
    session.mount("https://", adapter)
    made = RequestsTransport(session=session, session_owner=False, **verify)
    if account.replay:
        made.sleep = lambda _: None  # the wait happened during recording
    return made


class Noting(HTTPAdapter):
    def __init__(self, recorder: TrafficRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def send(self, request: PreparedRequest, *given: Any, **more: Any) -> Response:
        began = time.monotonic()
        response = super().send(request, *given, **more)
        if self._recorder.on:
            asked = (str(request.method), str(request.url), request.body)
            took_s = time.monotonic() - began
            self._recorder.note(asked, response.status_code, response.headers, response.content, took_s)
        return response


class Replaying(BaseAdapter):
    def __init__(self, replay: TrafficReplay) -> None:
        super().__init__()
        self._replay = replay

    def send(self, request: PreparedRequest, *_given: Any, **_more: Any) -> Response:
        status, headers, body = answered(self._replay.answer(str(request.method), str(request.url)))
        response = Response()
        response.status_code, response.headers = status, CaseInsensitiveDict(headers)
        response.raw, response.url, response.request = BytesIO(body), str(request.url), request
        return response

    def close(self) -> None:
        pass
