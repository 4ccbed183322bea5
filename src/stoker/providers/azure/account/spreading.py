"""A role counts everywhere only minutes after it was given: whoever was admitted just now may still be refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stoker.errors import NotAllowed, ProviderUnavailable

PATIENCE_S = 300.0  # as long as Azure says that it may take


class Spreading:
    """Refusals of a login that is admitted are unavailability at first, so that they are tried again."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._refused_at: float | None = None  # the first time since something was last allowed

    @contextmanager
    def waiting(self) -> Iterator[None]:
        try:
            yield
        except NotAllowed as error:
            if self._refused_at is None:
                self._refused_at = self._steady()
            if self._steady() - self._refused_at >= PATIENCE_S:
                raise
            why = f"{error.message}; a role that was given just now counts only after some minutes"
            raise ProviderUnavailable(why, hint=error.hint) from error
        self._refused_at = None
