"""The secrets that a user enters, and what a check reports for a store that fails in some way."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import BinaryIO

import pytest

from stoker.cli.commands.setup.store import credential
from stoker.errors import BadInput, StoreDenied, StoreFailed
from stoker.model.workspace.store import CheckResult, StoreFinding, checked_name, works
from stoker.server.stores import check as reaching
from stoker.server.stores.check import CheckedStore, Reach, check, clock, endpoint
from stoker.stores import Store, Stored
from stoker.testing.fakes import MemoryStore

KEY = "A" * 86 + "=="


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (KEY, "account-key"),
        ("sv=2024-01-01&se=2026&sig=abc", "sas"),
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b", "connection-string"),
        ("BlobEndpoint=https://a.blob.core.windows.net;SharedAccessSignature=sv=1&sig=x", "connection-string"),
    ],
)
def test_a_secret_is_recognised_by_its_form(text: str, kind: str) -> None:
    assert credential("az://account1/container", "", "THE_KEY", {"THE_KEY": text})[0] == kind


@pytest.mark.parametrize("text", ["hunter2", "AAAA", "not base64 at all!"])
def test_what_is_no_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(BadInput) as raised:
        credential("az://account1/container", "", "THE_KEY", {"THE_KEY": text})
    assert text not in str(raised.value)


def test_keys_of_s3_have_two_parts_or_three() -> None:
    def given(text: str) -> tuple[str, dict[str, str]]:
        return credential("s3://bucket", "", "THE_KEY", {"THE_KEY": text})

    assert given("id:secret") == ("s3-key", {"id": "id", "secret": "secret"})
    assert given("id\nsecret\nsession")[1]["session"] == "session"
    with pytest.raises(BadInput):
        given("id")


@pytest.mark.parametrize(
    ("url", "kind"), [("file:///x", ""), ("/x", ""), ("az://account1/box", "login"), ("s3://bucket", "none")]
)
def test_nobody_is_asked_for_a_secret_that_is_not_needed(url: str, kind: str) -> None:
    assert credential(url, kind, "", {}) == (kind or "none", {})


def test_a_secret_is_read_from_the_variable_that_is_named() -> None:
    found = credential("az://account1/container", "", "THE_KEY", {"THE_KEY": KEY + "\n"})
    assert found == ("account-key", {"key": KEY})
    with pytest.raises(BadInput, match="THE_KEY"):
        credential("az://account1/container", "", "THE_KEY", {})


@pytest.mark.parametrize("name", ["Blob", "", "-x", "a b", "x" * 41, "a/b"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        checked_name(name)


def subject(store: Store, reach: Reach | None = None) -> CheckedStore:
    return CheckedStore(lambda: store, lambda: reach, lambda: StoreFinding("node tokens", CheckResult.OK, "fine"))


def verdicts(store: Store, reach: Reach | None = None) -> dict[str, str]:
    return {one.name: str(one.verdict) for one in check(subject(store, reach))}


def test_a_store_that_works_leaves_nothing_behind() -> None:
    store = MemoryStore()
    assert set(verdicts(store).values()) == {"ok"}
    assert works(check(subject(store)))
    assert list(store.list("")) == []


class Careless(MemoryStore):
    """Replaces what it should not touch."""

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        super().put(key, data)


def test_a_store_without_conditional_writes_is_found_out() -> None:
    found = {one.name: one for one in check(subject(Careless()))}
    assert found["conditional write"].verdict is CheckResult.FAIL
    assert found["conditional write"].advice
    assert not works(found.values())


class ReadOnly(MemoryStore):
    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        raise StoreDenied("no")


def test_what_depends_on_a_failure_is_not_tried() -> None:
    found = verdicts(ReadOnly())
    assert (found["list"], found["write"], found["read"], found["delete"]) == ("ok", "fail", "skip", "skip")


class Blind(MemoryStore):
    def list(self, prefix: str) -> Iterator[Stored]:
        raise StoreDenied("no listing", hint="ask somebody")


def test_a_finding_has_the_hint_of_its_error() -> None:
    found = {one.name: one for one in check(subject(Blind()))}
    assert (found["list"].found, found["list"].advice) == ("no listing", "ask somebody")
    assert found["write"].verdict is CheckResult.OK


def test_a_store_that_cannot_be_reached_is_asked_nothing_else() -> None:
    def unreachable() -> Reach | None:
        raise StoreFailed("nothing listens at host:1", hint="check the port")

    def never() -> Store:
        raise AssertionError("it was opened")

    found = check(CheckedStore(never, unreachable, lambda: StoreFinding("", CheckResult.OK, "")))
    assert [str(one.verdict) for one in found] == ["fail"] + ["skip"] * 7


@pytest.mark.parametrize(
    ("skew_s", "verdict", "word"),
    [
        (0.3, "ok", "agrees"),
        (-30, "ok", "30 s behind"),
        (90, "warn", "90 s ahead of"),
        (-1200, "fail", "1200 s behind"),
    ],
)
def test_the_clock_is_compared_with_the_stores(skew_s: float, verdict: str, word: str) -> None:
    found = clock(skew_s)
    assert found.verdict == verdict
    assert word in found.found
    assert bool(found.advice) == (verdict != "ok")


def test_skew_is_what_the_date_header_says() -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    date = format_datetime(now.replace(microsecond=0) - timedelta(seconds=100), usegmt=True)
    assert reaching._skew_s(date, now) == pytest.approx(100.0)
    assert reaching._skew_s(None, now) is None
    assert reaching._skew_s("yesterday", now) is None


def test_every_kind_of_store_has_an_address() -> None:
    assert endpoint("file:///x") is None
    assert endpoint("az://account1/container") == "https://account1.blob.core.windows.net"
    assert endpoint("s3://bucket?region=eu-west-1") == "https://s3.eu-west-1.amazonaws.com"
    assert endpoint("s3://bucket?endpoint=http://localhost:9000") == "http://localhost:9000"
