"""Request bodies: those that are too large, too deep, of the wrong type or in another alphabet are refused with the
name of the field, and no secret is ever returned."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.client.api.http import Line

JOB = {"name": "job", "run": "true"}
RUN = {"key": "k", "job": JOB, "snapshot": "0" * 64, "python": "python3"}
ENTRY = {"path": "a.py", "sha256": "0" * 64, "size_bytes": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("bodies")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root, {**keep, "STOKER_HOME": str(root / "home")})
    shell.job("true")
    shell.stoker("run")
    yield shell
    for pid in shell.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ask(server: Shell, method: str, target: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """The status and, where it is one, the error."""
    line = Line(f"unix:{server.home}/server.sock", 10.0)
    token = json.loads((server.home / "server.json").read_text())["token"]
    answer = line.request(method, target, {"Authorization": f"Bearer {token}"}, body, timeout_s=60.0)
    told = json.loads(b"".join(answer.body))
    line.close()
    return answer.status, told.get("error", {})


def post(server: Shell, target: str, body: Any) -> tuple[int, dict[str, Any]]:
    return ask(server, "POST", target, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("target", "body", "field"),
    [
        ("/v1/forecast", {"job": JOB, "currency": 7}, "currency"),
        ("/v1/forecast", {"job": JOB, "currency": None}, "currency"),
        ("/v1/forecast", {"currency": "EUR"}, "job"),
        ("/v1/forecast", {"job": "true"}, "job"),
        ("/v1/runs/job-1/evict", {"notice_s": "30"}, "notice_s"),
        ("/v1/runs/job-1/evict", {"notice_s": True}, "notice_s"),
        ("/v1/runs/job-1/evict", {"notice_s": None}, "notice_s"),
        ("/v1/runs/job-1/evict", b'{"notice_s": 1e999}', "notice_s"),
        ("/v1/runs/job-1/evict", {"notice_s": 10**400}, "notice_s"),
        ("/v1/runs/job-1/evict", {"withdraw": "no"}, "withdraw"),
        ("/v1/runs/job-1/evict", {"notice": 3}, "notice"),
        ("/v1/runs/job-1/evict", [], "body"),
        ("/v1/runs/job-1/budget", {"usd": 5}, "usd"),
        ("/v1/runs/job-1/budget", {"usd": "5\0"}, "usd"),
        ("/v1/limits", {"period": "week-end", "usd": "5"}, "period"),
        ("/v1/limits", {"period": ["month"], "usd": "5"}, "period"),
        ("/v1/limits", {"period": "month", "usd": {}}, "usd"),
        ("/v1/limits", {"period": "month", "usd": "5", "person": 1}, "person"),
        ("/v1/stores", {"name": 1, "url": "/tmp/x"}, "name"),
        ("/v1/stores", {"name": "x", "url": ["/tmp/x"]}, "url"),
        ("/v1/stores", {"name": "x", "url": "/tmp/\0x"}, "url"),
        ("/v1/stores", {"name": "x", "url": "/tmp/\ud800"}, "url"),
        ("/v1/stores", {"name": "x", "url": "http://[::1"}, "http://[::1"),
        ("/v1/stores", {"name": "x", "url": "https://[::1/a/b"}, "https://[::1"),
        ("/v1/stores", {"name": "x", "url": "s3://[a"}, "s3://[a"),
        ("/v1/stores", {"name": "x", "url": "/tmp/x", "values": "key"}, "values"),
        ("/v1/stores", {"name": "x", "url": "/tmp/x", "credential": []}, "credential"),
        ("/v1/stores", {"name": "x", "url": "/tmp/x", "check": 1}, "check"),
        ("/v1/stores/folder/access", {"reads": "runs/"}, "reads"),
        ("/v1/stores/folder/access", {"reads": [1]}, "reads[0]"),
        ("/v1/snapshots", {"entries": {}}, "entries"),
        ("/v1/snapshots", {"entries": [1]}, "entries[0]"),
        ("/v1/snapshots", {"entries": [{**ENTRY, "size_bytes": "1"}]}, "entries[0].size_bytes"),
        ("/v1/snapshots", {"entries": [{**ENTRY, "size_bytes": 10**40}]}, "entries[0].size_bytes"),
        ("/v1/snapshots", {"entries": [{**ENTRY, "kind": "pipe"}]}, "entries[0].kind"),
        ("/v1/snapshots", {"entries": [{**ENTRY, "sha256": "../../x"}]}, "entries[0].sha256"),
        ("/v1/snapshots", {"entries": [{**ENTRY, "path": "../x"}]}, "../x"),
        ("/v1/runs", {**RUN, "key": 1}, "key"),
        ("/v1/runs", {**RUN, "snapshot": None}, "snapshot"),
        ("/v1/runs", {**RUN, "data": []}, "data"),
        ("/v1/runs", {**RUN, "packages": {"torch": 2}}, "packages.torch"),
        ("/v1/runs", {**RUN, "git": {"commit": 1}}, "git.commit"),
        ("/v1/runs", {**RUN, "person": "\ud800"}, "person"),
        ("/v1/runs", {**RUN, "job": {**JOB, "nodes": "many"}}, "nodes"),
        ("/v1/runs", {**RUN, "job": {**JOB, "env": {"\ud800": "1"}}}, "env."),
        ("/v1/runs/job-1/visits", {"words": "ls"}, "words"),
        ("/v1/runs/job-1/visits", {"words": ["ls\0"]}, "words[0]"),
        ("/v1/plan", b"{", "JSON"),
        ("/v1/plan", b"\xff\xfe", "JSON"),
        ("/v1/plan", b'{"job": NaN}', "JSON"),
        ("/v1/plan", b"", "JSON"),
        ("/v1/plan", b"1" * 5000, "JSON"),
    ],
)
def test_a_body_of_the_wrong_form_is_refused_with_the_name_of_the_field(
    server: Shell, target: str, body: Any, field: str
) -> None:
    status, error = post(server, target, body)
    assert (status, field in error["message"]) == (422, True), error


@pytest.mark.parametrize(
    ("method", "target", "field"),
    [
        ("GET", "/v1/runs/%00", "name"),
        ("GET", "/v1/runs?experiment=%00", "experiment"),
        ("GET", "/v1/runs?%00=1", "found"),
        ("GET", "/v1/snapshots/..", "id"),
        ("GET", "/v1/blobs/%00", "sha256"),
        ("GET", "/v1/runs/job-1/logs/1/99999999999999999999", "rank"),
        ("GET", "/v1/runs/job-1/logs/1/0?offset=-1", "offset"),
        ("GET", "/v1/runs/job-1/logs/1/0?offset=9999999999999999999999", "offset"),
        ("GET", "/v1/runs/job-1/metrics?after=-1", "after"),
        ("GET", "/v1/costs?since=0001-01-01T00:00:00%2B23:59", "since"),
        ("DELETE", "/v1/limits/fortnight", "of"),
    ],
)
def test_a_parameter_of_the_wrong_form_is_refused_by_its_name(
    server: Shell, method: str, target: str, field: str
) -> None:
    status, error = ask(server, method, target)
    assert (status, field in error["message"]) == (422, True), error


@pytest.mark.parametrize("name", ["%ED%A0%80", "%FF", "%F0%9F%98%80", "..", "a%2Fb", "%E2%80%AE"])
def test_names_from_other_alphabets_are_merely_unknown(server: Shell, name: str) -> None:
    assert ask(server, "GET", f"/v1/runs/{name}/receipt")[0] == 404


@pytest.mark.parametrize("target", ["/v1/plan", "/v1/snapshots", "/v1/datasets/pets/versions?store=folder&mark=x"])
def test_sixty_megabytes_of_brackets_cost_neither_time_nor_memory(server: Shell, target: str) -> None:
    before = memory_bytes(server)
    began = time.monotonic()
    status, _ = post(server, target, b"[" + b"[]," * 20_000_000 + b"[]]")
    assert status == 413
    assert time.monotonic() - began < 10
    assert memory_bytes(server) - before < 300e6


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b"[" * 5000 + b"]" * 5000, b'["' + b'\\"' * 10**6])
def test_a_deep_or_endless_body_is_refused_at_once(server: Shell, body: bytes) -> None:
    began = time.monotonic()
    assert post(server, "/v1/plan", body)[0] == 422
    assert time.monotonic() - began < 3


def test_others_are_answered_while_a_large_manifest_is_read(server: Shell) -> None:
    """50,000 files, which take a second or more to read."""
    entries = [{**ENTRY, "path": f"folder/file-{number}.py"} for number in range(50_000)]
    body = json.dumps({"entries": entries}).encode()
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(post, server, "/v1/snapshots", body)
        waits = []
        while not sent.done():
            began = time.monotonic()
            assert ask(server, "GET", "/v1/health")[0] == 200
            waits.append(time.monotonic() - began)
        assert sent.result()[0] == 200
    assert max(waits) < 3, waits


def test_no_secret_comes_back_in_an_error_or_stands_in_the_log(server: Shell) -> None:
    secret = "hf_very_secret"
    told = [
        post(server, "/v1/runs", {**RUN, "secrets": {"HF_TOKEN": f"{secret}\0"}}),
        post(server, "/v1/runs", {**RUN, "secrets": secret}),
        post(server, "/v1/stores", {"name": "x", "url": "/tmp/x", "values": {"key": f"{secret}\ud800"}}),
        post(server, "/v1/stores", {"name": "x", "url": "/tmp/x", "values": secret}),
        post(server, "/v1/stores", {"name": "x", "url": f"https://user:{secret}@[::1/a/b"}),
        post(server, "/v1/runs", json.dumps({"secrets": {"A": secret}})[:-1].encode()),
    ]
    assert [status for status, _ in told] == [422] * 6
    assert secret not in json.dumps(told)
    assert secret not in (server.home / "server.log").read_text()


def test_a_mistake_of_the_server_tells_no_details(server: Shell) -> None:
    """A row of its database is made unreadable: the request and its subject stay in the log."""
    with closing(sqlite3.connect(server.home / "stoker.db", isolation_level=None)) as database:
        facts = database.execute("select facts from runs").fetchone()[0]
        database.execute("update runs set facts = ?", ('{"hf_very_secret": 1',))
        try:
            status, error = ask(server, "GET", "/v1/runs/job-1")
        finally:
            database.execute("update runs set facts = ?", (facts,))
    assert status == 500
    assert error["code"] == "bug"
    mark = error["hint"].split()[2]
    assert mark in (server.home / "server.log").read_text()


def memory_bytes(server: Shell) -> int:
    """The peak memory of the server."""
    status = Path(f"/proc/{server.server_pid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
