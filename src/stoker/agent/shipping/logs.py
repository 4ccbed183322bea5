"""The output of the ranks, from their spool files to the store: in order, complete, once, with secrets masked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.worker import LookPause, Patience, Shipper, StoreTrouble
from stoker.errors import StokerError
from stoker.model.orders import Orders
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

CHUNK_BYTES = 1 << 20
TIMES_EVERY_S = 0.2


class RankLog:
    """One rank's log. The ranks write to the spool file themselves: nothing here can block them or lose output."""

    def __init__(
        self, store: Store, orders: Orders, folder: NodeFolder, rank: int, sizes: Mapping[str, int] | None = None
    ) -> None:
        """`sizes` are the sizes that earlier VMs of this attempt have uploaded, by key: this one appends."""
        self._store = store
        self._key = layout.log(orders.run_id, orders.attempt, rank)
        self._times_key = layout.log_times(orders.run_id, orders.attempt, rank)
        self.fd = os.open(folder.log(rank), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write_every_s = pacing(store).write_s
        self.shipped = 0
        self._covered = 0  # bytes after `shipped` that belong to a secret whose start was uploaded
        self._seen = (0, time.time())  # the size at the last look, and when that was
        self._behind = False  # there is more to upload than the last look saw
        self._before = (sizes or {}).get(self._key, 0)
        self._times_size = (sizes or {}).get(self._times_key, 0)
        self._times_due = 0.0
        self._times_every_s = max(TIMES_EVERY_S, 2 * pacing(store).write_s)

    @property
    def size(self) -> int:
        """Of what is in the store."""
        return self._before + self.shipped

    def ship(self, masking: Masking, *, final: bool) -> bool:
        """Uploads one chunk, if there is a new one; True if there is more. Repeat after StoreFailed."""
        size, now = os.fstat(self.fd).st_size, time.time()
        if size > self._seen[0]:
            self._note_time()
        elif not self._behind and not final:
            return False  # the masking holds back the rest, if any
        self._seen = (size, now)
        self._behind = True
        data = os.pread(self.fd, CHUNK_BYTES, self.shipped)
        reached = self.shipped + len(data)
        masked, covered = masking.mask(data, self._covered, final=final and reached == size)
        if masked:
            self._store.append(self._key, self._before + self.shipped, masked)
        self.shipped += len(masked)
        self._covered = covered
        self._behind = reached < size
        return self._behind

    def _note_time(self) -> None:
        """At the last look the log ended at `seen`: later bytes are not older than that look."""
        now = time.monotonic()
        if now < self._times_due:
            return
        line = f"[{self._before + self._seen[0]},{self._seen[1]:.3f}]\n".encode()
        self._times_size = self._store.append(self._times_key, self._times_size, line)
        self._times_due = now + self._times_every_s


class LogShipper(Shipper):
    """Uploads the logs of all ranks of this node. Finish it after the last process that prints has exited."""

    def __init__(self, masking: Masking, trouble: StoreTrouble) -> None:
        super().__init__("logs")
        self._logs: dict[int, RankLog] = {}
        self._masking = masking
        self._patience = Patience("logs", trouble)

    def add(self, rank: int, log: RankLog) -> None:
        self._logs = {**self._logs, rank: log}  # not in place: the thread may be iterating

    def has(self, rank: int) -> bool:
        return rank in self._logs

    def sizes(self) -> dict[str, int]:
        return {str(rank): log.size for rank, log in self._logs.items()}

    @property
    def _write_every_s(self) -> float:
        return 0.0 if self.hurried else max((log.write_every_s for log in self._logs.values()), default=0.0)

    def work(self) -> None:
        pace = LookPause(0.01, 0.1)
        while True:
            final = self.ending.is_set()
            before, asked = self.sizes(), self.asked
            more = self._ship(final=final)
            if more is False:
                self.answer(asked)
                if final:
                    return
            if not more:
                shipped = self.sizes() != before
                pause_s = max(pace.after(shipped), self._write_every_s if shipped else 0.0)
                time.sleep(pause_s) if final else self.pause(pause_s, asked)

    def _ship(self, *, final: bool) -> bool | None:
        """True if there is more to upload, None if nothing could be done now."""
        if not self._patience.due:
            return None
        try:
            more = [log.ship(self._masking, final=final) for log in self._logs.values()]
        except StokerError as error:
            self._patience.failed(error)
            return None
        self._patience.worked()
        return any(more)


# Secrets in the output become stars of the same length, so that offsets do not change.

SHORTEST = 8  # shorter values would mask ordinary text


class Masking:
    """Stateless: the caller keeps the offset of the upload and the number of bytes that are still covered."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values: set[str] = set()
        for secret in secrets:
            plain = secret.strip()  # a trailing newline of a secret from a file does not belong to it
            values |= {plain, json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        encoded = (value.encode(errors="surrogateescape") for value in values if len(value) >= SHORTEST)
        self._secrets = sorted(encoded)

    @property
    def needed(self) -> bool:
        return bool(self._secrets)

    def mask(self, data: bytes, covered: int = 0, *, final: bool = False) -> tuple[bytes, int]:
        """The bytes of `data` that may be shown now, masked, and how many of those after them belong to a secret.

        The first `covered` bytes are part of a secret that started earlier. An end that may be the start of a secret is
        held back until more is known: pass the rest again, with what follows. `final` means that nothing follows.
        """
        if not self._secrets:
            return data, 0
        spans = [(0, covered), *self._found(data)]
        shown = len(data) if final else len(data) - self._held(data)
        masked = bytearray(data[:shown])
        for start, end in spans:
            masked[start:end] = b"*" * max(min(end, shown) - start, 0)
        return bytes(masked), max(max(end for _, end in spans) - shown, 0)

    def whole(self, data: bytes) -> bytes:
        return self.mask(data, final=True)[0]

    def text(self, text: str) -> str:
        """The text as it can be stored: masked, and without lone surrogates, which file names may contain."""
        if not self._secrets and text.isascii():
            return text
        return self.whole(text.encode(errors="surrogateescape")).decode(errors="replace")

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Every occurrence, also overlapping ones: a secret is masked even if another starts in its middle."""
        spans = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                spans.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return spans

    def _held(self, data: bytes) -> int:
        """The length of the longest end of `data` with which a secret may start."""
        longest = 0
        for secret in self._secrets:
            for length in range(min(len(secret) - 1, len(data)), longest, -1):
                if data.endswith(secret[:length]):
                    longest = length
                    break
        return longest
