"""Stages the inputs of a run on its node before the script starts, and removes them when it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data import linking, urls
from stoker.agent.data.bringing import bring
from stoker.agent.data.cache import Cache
from stoker.agent.data.downloading import Tell
from stoker.agent.data.mounts import WaitWatch
from stoker.agent.data.room import Hold
from stoker.agent.data.site import DataSite, Input, cache_settings
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.errors import StoreFailed
from stoker.model.node.orders import Orders
from stoker.model.run.report import DataFigures
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed

KEEP_EVERY_S = 2.0  # between checks of the mounts
_TRIES = 5


def at_node(store: Store, orders: Orders, machine: NodeMachine, stopping: Stopping, tell: Tell) -> Staging:
    """Raises Broken where the settings of the cache are invalid."""
    settings = cache_settings(machine.variables, machine.environments.with_name("cache"))
    cache = Cache(settings.root)
    shim = machine.agent_command("fusermount")
    hold = Hold(cache, orders.key)
    return Staging(
        DataSite(store, orders, cache, hold, settings.limit_bytes, machine.variables, shim, stopping.check, tell)
    )


class Staging:
    """`stage`, then `watch` once the script runs, then `finish`; `release` in any case."""

    def __init__(self, site: DataSite) -> None:
        self._site = site
        self._inputs: list[Input] = []
        self._watch: WaitWatch | None = None
        self._keeper: threading.Thread | None = None
        self._begun = time.monotonic()
        self._ended = 0.0
        self._last: dict[str, DataFigures] = {}
        self._done = threading.Event()

    @property
    def folder(self) -> Path:
        """What must be cleared if this process dies."""
        return self._site.hold.folder

    def stage(self) -> dict[str, str]:
        """Where each input is, by name. Raises Broken or StoreFailed; these folders never contain partial files."""
        try:
            self._site.hold.take()
        except OSError as error:
            raise disk_failed("use the cache in", str(self._site.cache.root), error) from error
        places = {}
        for name, order in self._site.orders.inputs.items():
            self._site.check()
            one = Input(name, order, self._site.hold.trees / name)
            self._inputs.append(one)
            start = time.monotonic()
            places[name] = str(self._bring(one))
            one.stage_s = time.monotonic() - start
            self._tell(one)
        new = [sha256 for one in self._inputs for sha256 in one.fetched]
        # In a thread: a script need not wait until its data is flushed to disk.
        threading.Thread(target=self._site.cache.settle, args=(new,), name="settle", daemon=True).start()
        return places

    def watch(self, pids: Callable[[], set[int]]) -> None:
        """From here on, maintains the mounts and measures whether the script waits for them."""
        if any(one.mounts for one in self._inputs):
            self._watch = WaitWatch(pids)
            self._watch.start()
            self._keeper = threading.Thread(target=self._keep, name="mounts", daemon=True)
            self._keeper.start()

    @property
    def helpers(self) -> set[int]:
        """Processes that serve the mounts, which do not belong to the script."""
        return {pid for one in self._inputs for mount, _ in one.mounts for pid in mount.pids}

    def figures(self) -> dict[str, DataFigures]:
        """The current figures, or those at the end of the script."""
        if self._last:
            return self._last
        waited_s = self._watch.waited_s if self._watch else 0.0
        passed_s = (self._ended or time.monotonic()) - self._begun
        return {one.name: one.figures(waited_s, passed_s) for one in list(self._inputs)}

    def finish(self) -> None:
        """The script has ended: takes the last figures. Calling it twice is fine."""
        self._ended = self._ended or time.monotonic()
        self._done.set()
        if self._keeper:
            self._keeper.join()
        if self._watch:
            self._watch.finish()
        self._last = self.figures()

    def release(self) -> None:
        """Unmounts and releases everything. Calling it twice is fine."""
        self.finish()
        for one in self._inputs:
            for mount, _ in one.mounts:
                mount.stop()
        self._site.hold.release()

    def _bring(self, one: Input) -> Path:
        if not one.order.url:
            bring(self._site, one)
            return one.top
        return self._bring_url(one)

    def _bring_url(self, one: Input) -> Path:
        """A single file, so the path is that of the file."""
        one.way, one.files = "download", 1
        one.top.mkdir()
        place = one.top / urls.name_of(one.order.url)
        work = urls.UrlFetch(self._site.cache, self._site.check, self._site.tell, one.tally)
        for _ in range(_TRIES):
            sha256, one.size_bytes = work.fetch(one.order.url, one.order.sha256, partial(self._make_room, one))
            one.fetched += [sha256] if work.fetched else []
            one.cached_bytes = 0 if work.fetched else one.size_bytes
            with suppress(FileNotFoundError):
                self._site.cache.use(sha256, str(place))
                linking.protect(one.top)
                return place
        raise StoreFailed(f"the cache of this node is too small for `{one.name}`", hint="raise STOKER_CACHE_LIMIT")

    def _make_room(self, one: Input, name: str, size_bytes: int) -> None:
        one.size_bytes = size_bytes
        self._site.hold.reserve({name: size_bytes}, self._site.limit_bytes)

    def _keep(self) -> None:
        while not self._done.wait(KEEP_EVERY_S):
            for one in self._inputs:
                for mount, key in one.mounts:
                    try:
                        done = mount.keep(self._site.store.route(key))
                    except (AttemptBroken, OSError) as error:
                        done = f"became unreadable: {error}"
                    if done:
                        self._site.tell("data", f"`{one.name}` {done}")

    def _tell(self, one: Input) -> None:
        repaired = self._site.cache.repaired
        if repaired:
            what = "1 file" if len(repaired) == 1 else f"{len(repaired)} files"
            self._site.tell("data-repaired", f"{what} in the cache had been damaged, and were downloaded again")
            repaired.clear()
        self._site.tell("data", one.words())
