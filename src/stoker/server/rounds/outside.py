"""How the async server calls plain code that may block: in a thread, with a time-out and a limit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ParamSpec, TypeVar

from stoker.errors import Unanswered

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(max_workers=24, thread_name_prefix="outside")
_FAR = ThreadPoolExecutor(max_workers=32, thread_name_prefix="far")
TIMEOUT_S = 60.0


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The call's result. After the time-out the caller continues; the thread ends when the call does."""
    return await _call(_THREADS, partial(function, *args, **kwargs), function)


async def call_far(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same in threads of their own, for what may hang on a network: nothing else waits for them."""
    return await _call(_FAR, partial(function, *args, **kwargs), function)


async def _call(threads: ThreadPoolExecutor, work: Callable[[], T], function: object) -> T:
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(threads, work)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.shield(future)
    except TimeoutError:
        name = getattr(function, "__qualname__", str(function))
        raise Unanswered(f"{name} has not answered for {TIMEOUT_S:.0f} s") from None


async def call_briefly(patience_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The call's result, or None if it takes longer: then it continues in the background, and a failure is logged."""
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(_THREADS, partial(function, *args, **kwargs))
    try:
        return await asyncio.wait_for(asyncio.shield(future), patience_s)
    except TimeoutError:
        future.add_done_callback(_tell_failure)
        return None


def _tell_failure(future: asyncio.Future[T]) -> None:
    if error := future.exception():
        log.error("a background task failed: %s", error)


# The server's clock: the time of day at its start plus steady seconds. Changes of the computer's clock do not matter.

# Time passes while a laptop is shut: machines elsewhere still cost money.
_AWAKE_OR_NOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    def __init__(self) -> None:
        self._wall = datetime.now(UTC)
        self._began = time.clock_gettime(_AWAKE_OR_NOT)

    def now(self) -> datetime:
        return self._wall + timedelta(seconds=time.clock_gettime(_AWAKE_OR_NOT) - self._began)

    def steady(self) -> float:
        """Seconds that only ever grow, for measuring how long something has lasted."""
        return time.monotonic()
