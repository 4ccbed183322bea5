"""A node that is about to go, or a checkpoint that is about to be committed: what was printed and measured goes to the
store at once, whatever a write costs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.logs import LogShipper, Masking, RankLog
from stoker.agent.shipping.metrics.metrics import MetricsShipper, logged_points
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import StoreTrouble
from stoker.errors import Missing, StoreUnavailable
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.run.report import MetricSummary
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

ORDERS = Orders("r", "ants-1", 1, 0, "key", Job(name="ants", run="true"), "s", "")


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    node = NodeFolder(tmp_path / "node")
    node.make({})
    return node


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def logs(store: FolderStore, folder: NodeFolder) -> Iterator[LogShipper]:
    """Of a store that is written at most once an hour."""
    shipper = LogShipper(Masking([]), StoreTrouble())
    log = RankLog(store, ORDERS, folder, 0)
    log.write_every_s = 3600.0
    shipper.add(0, log)
    yield shipper
    shipper.finish()


def comes(store: FolderStore, key: str, data: bytes) -> None:
    until = time.monotonic() + 20
    while not _has(store, key, data):
        assert time.monotonic() < until, f"{data!r} did not come"
        time.sleep(0.01)


def _has(store: FolderStore, key: str, data: bytes) -> bool:
    try:
        return data in store.get(key)
    except Missing:
        return False


def write(folder: NodeFolder, text: str) -> None:
    with folder.log(0).open("a") as log:
        log.write(text)


def measure(folder: NodeFolder, step: int) -> None:
    with folder.metrics.open("a") as points:
        points.write(f'{{"at": 1.0, "rank": 0, "step": {step}, "values": {{"loss": 0.5}}}}\n')


def test_the_last_lines_before_an_eviction_are_shipped_at_once(
    store: FolderStore, folder: NodeFolder, logs: LogShipper
) -> None:
    logs.hurried = True
    logs.start()
    for number in range(3):
        write(folder, f"line {number}\n")
        comes(store, layout.log("r", 1, 0), b"line %d\n" % number)


def test_without_a_hurry_lines_wait_for_others(store: FolderStore, folder: NodeFolder, logs: LogShipper) -> None:
    logs.start()
    write(folder, "line 0\n")
    comes(store, layout.log("r", 1, 0), b"line 0\n")
    write(folder, "line 1\n")
    time.sleep(0.3)
    assert store.get(layout.log("r", 1, 0)) == b"line 0\n"
    logs.finish()
    assert store.get(layout.log("r", 1, 0)) == b"line 0\nline 1\n"


def test_the_last_metrics_before_an_eviction_are_shipped_at_once(store: FolderStore, folder: NodeFolder) -> None:
    metrics = MetricsShipper(store, ORDERS, Masking([]), StoreTrouble())
    metrics._write_every_s = 3600.0
    metrics.sources.append(logged_points(folder.metrics))
    metrics.hurried = True
    metrics.start()
    for step in range(3):
        measure(folder, step)
        comes(store, layout.metrics("r", 1, 0), b'"step": %d' % step)
    metrics.finish()


def test_points_of_an_earlier_machine_of_the_attempt_count(store: FolderStore, folder: NodeFolder) -> None:
    metrics = MetricsShipper(store, ORDERS, Masking([]), StoreTrouble())
    metrics.sources.append(logged_points(folder.metrics))
    lines = [MetricPoint(1.0, 0, step, {"loss": value}).line() for step, value in enumerate((3.0, 0.1))]
    size = store.append(layout.metrics("r", 1, 0), 0, b"".join(lines))
    metrics.continue_from({layout.metrics("r", 1, 0): size})
    metrics.start()
    measure(folder, 2)
    metrics.finish()
    assert metrics.summaries.now() == {"loss": MetricSummary(0.5, 0.1, 3.0, 3, 2)}
    assert store.get(layout.metrics("r", 1, 0)).count(b"\n") == 3


def test_before_a_checkpoint_is_committed_all_that_was_printed_and_measured_is_in_the_store(
    store: FolderStore, folder: NodeFolder
) -> None:
    shipping = Shipping(store, ORDERS, folder, Masking([]), StoreTrouble())
    (folder.work / "outputs").mkdir(parents=True)
    shipping.start([0])
    shipping.logs._logs[0].write_every_s = shipping.metrics._write_every_s = 3600.0
    for step in range(5):
        write(folder, f"line {step}\n")
        measure(folder, step)
        shipping.catch_up()
        assert store.get(layout.log("r", 1, 0)).endswith(b"line %d\n" % step)
        assert b'"step": %d' % step in store.get(layout.metrics("r", 1, 0))
    for work in shipping.steps():
        work()
    begun = time.monotonic()
    shipping.catch_up()
    assert time.monotonic() - begun < 1, "nobody waits for a worker that has ended"


class RefusingStore(FolderStore):
    """Takes nothing for now."""

    def append(self, key: str, offset: int, data: bytes) -> int:
        raise StoreUnavailable("it is away")


def test_who_waits_for_a_store_that_is_away_keeps_no_processor_busy(tmp_path: Path, folder: NodeFolder) -> None:
    store = RefusingStore(tmp_path / "store")
    shipping = Shipping(store, ORDERS, folder, Masking([]), StoreTrouble())
    (folder.work / "outputs").mkdir(parents=True)
    shipping.start([0])
    write(folder, "line\n")
    measure(folder, 0)
    for shipper in (shipping.metrics, shipping.logs):
        shipper.catch_up(0.3)
    begun, used = time.monotonic(), time.process_time()
    time.sleep(1)
    share = (time.process_time() - used) / (time.monotonic() - begun)
    store.append = FolderStore(tmp_path / "store").append  # type: ignore[method-assign]
    for work in shipping.steps():
        work()
    assert share < 0.3
    assert store.get(layout.log("r", 1, 0)) == b"line\n"


def test_a_hurry_ends_a_pause_that_has_begun(store: FolderStore, folder: NodeFolder, logs: LogShipper) -> None:
    logs.start()
    write(folder, "line 0\n")
    comes(store, layout.log("r", 1, 0), b"line 0\n")
    write(folder, "line 1\n")
    time.sleep(0.3)
    logs.hurried = True
    comes(store, layout.log("r", 1, 0), b"line 1\n")
