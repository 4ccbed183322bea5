"""The SDKs' own transport over a session that notes what goes through it, or answers from a recording."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict

from stoker.providers.azure.account.account import Account
from stoker.providers.azure.wire.recording import Recorder
from stoker.providers.azure.wire.replaying import Replay, answered


def transport(account: Account) -> Any:
    """For any client of the SDKs."""
    from azure.core.pipeline.transport import RequestsTransport

    verify = {"connection_verify": account.ca_file} if account.ca_file else {}
    session = Session()
    adapter = Replaying(Replay(Path(account.replay))) if account.replay else Noting(Recorder(account))
    session.mount("https://", adapter)
    made = RequestsTransport(session=session, session_owner=False, **verify)
    if account.replay:
        made.sleep = lambda _: None  # whoever waited for this waited when it was recorded
    return made


class Noting(HTTPAdapter):
    def __init__(self, recorder: Recorder) -> None:
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
    def __init__(self, replay: Replay) -> None:
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
