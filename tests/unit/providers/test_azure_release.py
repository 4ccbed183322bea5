"""A VM that removes itself watches the deletion to its end, and repeats it where it failed."""

from __future__ import annotations

import io
import json
import urllib.request
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest

from stoker.providers.azure.node import Release

RELEASE = Release("https://arm/group", "http://metadata/token", "https://arm/off")


class Answer(io.BytesIO):
    def __init__(self, status: int, location: str = "") -> None:
        super().__init__(json.dumps({"access_token": "t"}).encode())
        self.status, self.headers = status, Message()
        if location:
            self.headers["Location"] = location


class Azure:
    """Answers in turn; a status of 400 or more is raised, as urllib does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str]) -> None:
        self.answers, self.asked, self.slept = list(answers), [], []  # type: ignore[var-annotated]
        monkeypatch.setattr(urllib.request, "urlopen", self._open)
        monkeypatch.setattr(Release, "_token", lambda _: "t")

    def _open(self, request: Any, **_: Any) -> Answer:
        self.asked.append(f"{request.get_method()} {request.full_url}")
        status, more = self.answers.pop(0)
        if status >= 400:
            raise HTTPError(request.full_url, status, more, Message(), io.BytesIO(more.encode()))
        return Answer(status, more)

    def release(self) -> list[str]:
        RELEASE.carry_out(self.slept.append)
        assert not self.answers
        return self.asked


def test_a_deletion_is_watched_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    azure = Azure(monkeypatch, (202, "https://arm/op"), (202, ""), (202, ""), (200, ""))
    assert azure.release() == ["DELETE https://arm/group", *["GET https://arm/op"] * 3]
    assert azure.slept == [10.0] * 3


def test_a_deletion_that_was_taken_on_and_failed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    azure = Azure(monkeypatch, (202, "https://arm/op"), (409, "AnotherOperation"), (202, "https://arm/op"), (204, ""))
    assert azure.release() == ["DELETE https://arm/group", "GET https://arm/op"] * 2


def test_a_role_that_has_not_spread_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    azure = Azure(monkeypatch, (403, "AuthorizationFailed"), (403, "AuthorizationFailed"), (202, ""))
    assert azure.release() == ["DELETE https://arm/group", "POST https://arm/off", "DELETE https://arm/group"]


def test_what_is_gone_already_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Azure(monkeypatch, (404, "gone")).release() == ["DELETE https://arm/group"]


def test_a_conflict_with_another_request_is_no_deletion_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure refuses to delete a scale set that it is changing, as when it has just restored a machine."""
    azure = Azure(monkeypatch, (409, '{"error": {"code": "Conflict"}}'), (202, "https://arm/op"), (204, ""))
    assert azure.release() == ["DELETE https://arm/group", "DELETE https://arm/group", "GET https://arm/op"]


def test_what_is_locked_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    azure = Azure(monkeypatch, (409, '{"error": {"code": "ScopeLocked"}}'), (202, ""))
    assert azure.release() == ["DELETE https://arm/group", "POST https://arm/off"]
