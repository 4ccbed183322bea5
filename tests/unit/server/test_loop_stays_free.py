"""The server's event loop waits for no store: neither for opening one, nor for an answer of it."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import stoker.server
from stoker.errors import StokerError
from stoker.model.run.run import Attempt, AttemptState, Run, RunState
from stoker.model.workspace.home import Home
from stoker.server.api.app import build
from stoker.server.records.database import Database
from stoker.server.service import Service, assemble
from stoker.server.settings import ServerSettings
from stoker.stores import Store, Stored
from stoker.stores.access import NOTHING, Credential
from stoker.testing.fakes import MemoryStore

FAR = "s3://far"


class Watch:
    """The requests to a store, and which of them were in the thread of the event loop."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.blocking: list[str] = []

    def note(self, what: str) -> None:
        self.asked.append(what)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.blocking.append(what)


class WatchedStore(MemoryStore):
    def __init__(self, watch: Watch, url: str) -> None:
        super().__init__(url)
        self._watch = watch

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._watch.note(f"get {key}")
        return super().get(key, start, size)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        self._watch.note(f"put {key}")
        super().put(key, data, only_new=only_new)

    def list(self, prefix: str) -> Iterator[Stored]:
        self._watch.note(f"list {prefix}")
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self._watch.note(f"delete {key}")
        super().delete(key)


class World:
    """A whole server whose remote store is opened again in every request."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.watch = Watch()
        self._store = WatchedStore(self.watch, FAR)
        database = Database.open(home / "stoker.db")
        self.service: Service = assemble(ServerSettings(Home(home), keychain="file"), "t", database)
        self.service.stores._opener = self._open
        self.service.stores.add("far", FAR, NOTHING, self.service.clock.now())
        self.app = build(self.service)

    def forget(self) -> None:
        self.service.stores._opened.pop("far", None)

    def _open(self, url: str, credential: Credential | None) -> Store:
        self.watch.note(f"open {url}")
        return self._store

    async def ask(self, method: str, path: str) -> int:
        self.forget()
        path, _, query = path.partition("?")
        scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"query_string": query.encode(), "headers": [(b"authorization", b"Bearer t")], "http_version": "1.1"}
        scope |= {"scheme": "http", "server": ("server", 80), "client": ("client", 1), "root_path": "", "asgi": {}}
        coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        coming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        statuses: list[int] = []

        async def send(message: Mapping[str, Any]) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        await self.app(scope, coming.get, send)
        return statuses[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    yield made
    made.service.database.close()


def running(make_run: Callable[..., Run], now: datetime) -> Run:
    attempt = Attempt(1, "key-1", AttemptState.RUNNING, now, started_at=now)
    return make_run(store="far", state=RunState.RUNNING, attempts=(attempt,), submitted_at=now)


def questions(world: World, run: Run) -> list[str]:
    """Every GET that there is, about this run."""
    given = {"name": run.name, "attempt": "1", "rank": "0", "kind": "outputs", "ref": "none", "sha256": "0" * 64}
    found = [path for path, methods in world.app.openapi()["paths"].items() if "get" in methods]
    return [re.sub(r"\{(\w+)\}", lambda part: given.get(part[1], "0" * 64), path) for path in found]


def test_no_question_is_answered_by_blocking_the_loop(world: World, make_run: Callable[..., Run]) -> None:
    async def story() -> None:
        run = running(make_run, world.service.clock.now())
        await world.service.ledger.add(run, "key", [])
        for path in questions(world, run):
            await world.ask("GET", path)
        assert await world.ask("GET", f"/v1/runs/{run.name}/logs/1/0") == 200

    asyncio.run(story())
    assert world.watch.blocking == []
    assert len([one for one in world.watch.asked if one.startswith("open")]) >= 6, "the questions were answered"
    assert len([one for one in world.watch.asked if not one.startswith("open")]) >= 6


def test_no_round_and_no_removal_blocks_the_loop(world: World, make_run: Callable[..., Run]) -> None:
    async def story() -> None:
        service = world.service
        run = running(make_run, service.clock.now())
        await service.ledger.add(run, "key", [])
        ended = make_run(2, store="far", state=RunState.SUCCEEDED, snapshot="0" * 64)
        await service.ledger.add(ended, "another", [])
        for _ in range(3):
            world.forget()
            await service.reconciler.round()
            world.forget()
            await service.reconciler.live(await service.ledger.find(run.name))
            await asyncio.sleep(0.05)
        world.forget()
        try:
            await service.removals.remove([ended.name])
        except StokerError as error:
            pytest.fail(error.message)

    asyncio.run(story())
    assert world.watch.blocking == []
    assert world.watch.asked


class Asked:
    """A provider that notes who asks it for offers."""

    def __init__(self, name: str, provider: Any, by: list[str]) -> None:
        self._name, self._provider, self._by = name, provider, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def offers(self, need: Any) -> Any:
        self._by.append(self._name)
        return self._provider.offers(need)


def test_a_round_asks_no_engine_and_no_market_for_its_room(world: World, make_run: Callable[..., Run]) -> None:
    asked: list[str] = []
    reconciler = world.service.reconciler
    reconciler._providers = {name: Asked(name, one, asked) for name, one in reconciler._providers.items()}

    async def story() -> None:
        await world.service.ledger.add(make_run(store="far"), "key", [])
        await reconciler.round()

    asyncio.run(story())
    assert set(asked) == {"local", "ssh"}, "others answer over a network, or by a program: several times a second"


def asynchronous_calls(path: Path) -> Iterator[tuple[int, str]]:
    """Calls in the bodies of coroutines; functions in them may run in threads."""

    def below(node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.Call):
                yield child
            yield from below(child)

    for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(one, ast.AsyncFunctionDef):
            yield from ((call.lineno, ast.unparse(call.func)) for call in below(one))


def test_no_coroutine_opens_a_store_itself() -> None:
    """`await stores.reach(name)` does so in a thread."""
    found = [
        f"{path}:{line}"
        for path in sorted(Path(stoker.server.__file__).parent.rglob("*.py"))
        for line, function in asynchronous_calls(path)
        if re.search(r"(^|[._])stores\.(of|open|credential)$", function) and path.name != "stores.py"
    ]
    assert found == []
