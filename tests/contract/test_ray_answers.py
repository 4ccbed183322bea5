"""What the provider makes of answers of a Ray head that a real cluster gives rarely: a head of our own says them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import NotSetUp, ProviderUnavailable
from stoker.model.node import Need, NodeRequest, NodeState, Pool
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.ray import RayProvider

ROW = {"submission_id": "", "status": "RUNNING", "message": ""}


class Head:
    """Keeps jobs and packages, and runs nothing."""

    def __init__(self) -> None:
        self.version: Any = {"ray_version": "2.60.0"}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.loses_answers = False  # what it is asked for is done, and not answered
        head = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                head.answer(self, b"")

            def do_PUT(self) -> None:
                head.answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            do_POST, do_DELETE = do_PUT, do_GET  # noqa: N815  # names of the standard library

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, given: bytes) -> None:
        self.asked.append(f"{request.command} {request.path}")
        code, said = self._said(request.command, request.path, given)
        if self.loses_answers and request.command == "POST":
            request.connection.close()
            return
        data = json.dumps(said).encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _said(self, verb: str, path: str, given: bytes) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        match verb, parts[1:]:
            case "GET", ["version"]:
                return 200, self.version
            case "GET", ["cluster_status"]:
                return 200, {"data": {}}
            case "GET", ["jobs"]:
                return 200, list(self.jobs.values())
            case "POST", ["jobs"]:
                id = json.loads(given)["submission_id"]
                if id in self.jobs:
                    return 500, f"Job with submission_id {id} already exists"
                self.jobs[id] = {**ROW, "submission_id": id}
                return 200, {"submission_id": id}
            case "PUT", ["packages", "gcs", name]:
                self.packages[name] = given
                return 200, {}
            case "GET", ["packages", "gcs", name]:
                return (200 if name in self.packages else 404), {}
            case _, ["jobs", id, *rest]:
                return self._of_job(verb, id, rest)
        return 404, "not found"

    def _of_job(self, verb: str, id: str, rest: list[str]) -> tuple[int, Any]:
        if id not in self.jobs:
            return 404, "no such job"
        if rest == ["stop"]:
            self.jobs[id]["status"] = "STOPPED"
        if verb == "DELETE":
            del self.jobs[id]
            return 200, {}
        return 200, self.jobs[id]


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head()
    yield made
    made.close()


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayProvider:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return RayProvider(Setup(Home(tmp_path)))


def of(head: Head, key: str = "r-1", *together: str) -> NodeRequest:
    need = Need(pool=Pool("grid", {"address": head.address}))
    return NodeRequest(key, "orders", "file:///store", need=need, together=together, secrets={"KEY": "hidden-17"})


def tell(head: Head, **known: list[str]) -> None:
    (job,) = head.jobs.values()
    job["message"] = "stoker: " + json.dumps({key.replace("_", "-"): said for key, said in known.items()})


def seen(provider: RayProvider) -> dict[str, NodeState]:
    return {sight.key: sight.state for sight in provider.look()}


@pytest.mark.parametrize("version", [{"ray_version": "2.9.3"}, {"hello": "world"}, ["a list"]])
def test_another_program_and_an_old_ray_are_refused(provider: RayProvider, head: Head, version: object) -> None:
    head.version = version
    with pytest.raises(NotSetUp):
        provider.offers(Need(pool=Pool("grid", {"address": head.address})))


def test_a_job_whose_answer_was_lost_is_not_submitted_twice(provider: RayProvider, head: Head) -> None:
    head.loses_answers = True
    with pytest.raises(ProviderUnavailable):
        provider.start(of(head))
    head.loses_answers = False
    provider.start(of(head))
    provider.start(of(head))
    assert len(head.jobs) == 1
    assert head.asked.count("POST /api/jobs/") == 1
    assert seen(provider) == {"r-1": NodeState.STARTING}


def test_one_look_is_one_request_for_all_jobs(provider: RayProvider, head: Head) -> None:
    for number in range(20):
        provider.start(of(head, f"r-{number}"))
    head.asked.clear()
    assert len(provider.look()) == 20
    assert head.asked == ["GET /api/jobs/"]


def test_a_cluster_that_is_away_says_nothing_about_the_nodes_of_another(provider: RayProvider, head: Head) -> None:
    other = Head()
    provider.start(of(other, "r-1"))
    provider.start(of(head, "r-2"))
    other.close()
    assert seen(provider) == {"r-1": NodeState.UP, "r-2": NodeState.STARTING}
    head.close()
    with pytest.raises(ProviderUnavailable):
        provider.look()


def test_a_head_that_was_restarted_has_lost_its_nodes_and_they_can_be_stopped(
    provider: RayProvider, head: Head
) -> None:
    provider.start(of(head))
    tell(head, r_1=["up", "", ""])
    assert seen(provider) == {"r-1": NodeState.UP}
    head.jobs.clear()
    assert seen(provider) == {"r-1": NodeState.GONE}
    provider.stop("r-1")
    assert seen(provider) == {}


def test_what_was_sent_for_a_job_that_never_ran_is_removed(provider: RayProvider, head: Head) -> None:
    provider.start(of(head))
    assert b"hidden-17" in b"".join(head.packages.values())
    provider.stop("r-1")
    assert b"hidden-17" not in b"".join(head.packages.values())
    assert head.jobs == {}


def test_each_node_of_a_gang_is_what_its_driver_says(provider: RayProvider, head: Head) -> None:
    for key in ("g-1", "g-2", "g-3"):
        assert not head.jobs
        provider.start(of(head, key, "g-1", "g-2", "g-3"))
    lost = ["gone", "its node died", ""]
    tell(head, g_1=["up", "", ""], g_2=lost, g_3=["starting", "3 nodes with 1 CPU", ""])
    sights = {sight.key: sight for sight in provider.look()}
    assert [sights[key].state for key in sorted(sights)] == [NodeState.UP, NodeState.GONE, NodeState.STARTING]
    assert (sights["g-2"].reason, "3 nodes with 1 CPU" in sights["g-3"].waits) == ("its node died", True)
    provider.stop("g-2")
    assert sorted(seen(provider)) == ["g-1", "g-3"]


def test_nodes_that_no_autoscaler_gave_are_a_lack_of_capacity(provider: RayProvider, head: Head) -> None:
    provider.start(of(head))
    (job,) = head.jobs.values()
    said = json.dumps({"r-1": ["gone", "no nodes for 900 s", "no-capacity"]})
    job |= {"status": "FAILED", "message": f"Job entrypoint command failed with exit code 1\nstoker: {said}"}
    (sight,) = provider.look()
    assert (sight.state, sight.trouble) == (NodeState.GONE, "no-capacity")


def test_nonsense_in_a_message_is_no_state(provider: RayProvider, head: Head) -> None:
    provider.start(of(head))
    (job,) = head.jobs.values()
    for message in ("stoker: {", "stoker: [1]", 'stoker: {"r-1": 5}', 'stoker: {"r-1": []}', "Job is running"):
        job["message"] = message
        assert seen(provider) == {"r-1": NodeState.STARTING}
