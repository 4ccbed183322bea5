"""An event loop in virtual time, for one life of a server: it may stop between any two awaits, without clean-up."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any, cast

from stoker.server.rounds.outside import Clock
from stoker.testing.world.scenario import Timeline, moment

CALL_S = 0.02  # duration of an outside call, if nothing hangs


class VirtualLoop:
    """What asyncio uses of a loop. Work for threads runs inline at one virtual moment, and its result arrives after its
    virtual duration. So the same seed gives the same life. A dead loop resumes nothing: its coroutines are kept until
    the world ends, since a dropped coroutine would still run its `finally`."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._self = cast(asyncio.AbstractEventLoop, self)
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0  # of timers: of two at the same moment the older one comes first
        self._planned = float("inf")  # the next visit of the timeline
        self.is_dead = False
        self.dies_in: int | None = None  # remaining steps
        self.died: Callable[[], None] = lambda: None
        self.taking_s = 0.0  # duration of the current call so far
        self.failures: list[str] = []  # of tasks that nobody awaited
        self._tasks: set[asyncio.Task[Any]] = set()

    def kill(self) -> None:
        self.is_dead = True

    def bury(self) -> None:
        """The world has ended: drops silently what was never resumed."""
        self.kill()
        with _running(self._self):
            for task in sorted(self._tasks, key=asyncio.Task.get_name):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(Exception):
                    task.get_coro().close()
        self._tasks.clear()

    # The interface that asyncio requires

    def time(self) -> float:
        return self._timeline.now + self.taking_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        self._come_by(self._timeline.now)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        self._come_by(when)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap, and is skipped."""

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self._timeline.after(CALL_S, partial(self._work, future, partial(func, *args)))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # Execution

    def _work(self, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        if self.is_dead:
            return
        self.taking_s = 0.0
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        took_s, self.taking_s = self.taking_s, 0.0
        if took_s:
            self._timeline.after(took_s, partial(self._answer, future, result, error))
        else:
            self._answer(future, result, error)

    def _answer(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if self.is_dead or future.done():
            return
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _come_by(self, when: float) -> None:
        if when < self._planned and not self.is_dead:
            self._planned = when
            self._timeline.at(when, partial(self._run, when))

    def _run(self, when: float) -> None:
        """Everything that is ready, one step after the other."""
        if when != self._planned:
            return
        self._planned = float("-inf")  # what becomes ready meanwhile runs below
        with _running(self._self):
            while not self.is_dead and (handle := self._next()):
                if self.dies_in is not None:
                    self.dies_in -= 1
                    if self.dies_in < 0:
                        self.died()
                        return
                handle._run()
        self._planned = float("inf")
        if self._timers:
            self._come_by(self._timers[0][0])

    def _next(self) -> asyncio.Handle | None:
        timers, ready = self._timers, self._ready
        while timers and (timers[0][0] <= self._timeline.now or timers[0][2]._cancelled):
            ready.append(heapq.heappop(timers)[2])
        while ready:
            handle = ready.popleft()
            if not handle._cancelled:
                return handle
        return None


@contextmanager
def _running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class VirtualClock(Clock):
    """As wrong as the computer's clock was when this server started."""

    def __init__(self, timeline: Timeline, loop: VirtualLoop, wrong_s: float) -> None:
        self._timeline = timeline
        self._loop = loop
        self._wrong_s = wrong_s

    def now(self) -> datetime:
        return moment(self.steady() + self._wrong_s)

    def steady(self) -> float:
        return self._loop.time()
