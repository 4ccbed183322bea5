"""Tables of Lightning, Keras and YOLO, and JSON lines: appended rows, later columns, files of other runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.metrics.tablefiles import TableFilePoints
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import StoreTrouble
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.testing.fakes import MemoryStore


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path


def version(work: Path, number: int, logs: str = "lightning_logs") -> Path:
    folder = work / logs / f"version_{number}"
    folder.mkdir(parents=True)
    return folder / "metrics.csv"


def points(source: TableFilePoints) -> list[tuple[float | None, dict[str, float | None]]]:
    return [(one.step, dict(one.values)) for one in source.fresh(final=True)]


def test_rows_are_points_with_the_cells_that_hold_something(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    file = version(work, 0)
    file.write_text("epoch,step,train_loss,val_acc\n0,9,0.5,\n0,19,,0.75\n0,2")
    assert points(source) == [(9, {"epoch": 0, "train_loss": 0.5}), (19, {"epoch": 0, "val_acc": 0.75})]
    assert points(source) == []
    file.write_text("epoch,step,train_loss,val_acc\n0,9,0.5,\n0,19,,0.75\n0,29,nan,\n")
    assert points(source) == [(29, {"epoch": 0, "train_loss": None})]


def test_a_new_column_does_not_bring_old_rows_again(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    file = version(work, 0, "logs/mnist")
    file.write_text("step,loss\n1,0.5\n")
    assert points(source) == [(1, {"loss": 0.5})]
    file.write_text("step,acc,loss\n1,,0.5\n2,0.75,0.25\n")
    assert points(source) == [(2, {"acc": 0.75, "loss": 0.25})]


def test_what_was_there_before_is_of_another_training(work: Path) -> None:
    version(work, 0).write_text("step,loss\n1,0.5\n")
    source = TableFilePoints(work, work / "outputs", 0)
    version(work, 1).write_text("step,loss\n1,0.25\n")
    assert points(source) == [(1, {"loss": 0.25})]


def test_files_in_the_outputs_are_read_from_where_an_earlier_attempt_ended(work: Path) -> None:
    file = work / "outputs" / "run" / "metrics.csv"
    file.parent.mkdir()
    file.write_text("step,loss\n1,0.5\n")
    source = TableFilePoints(work, work / "outputs", 0, ["run/metrics.csv"])
    file.write_text("step,loss\n1,0.5\n2,0.25\n")
    assert points(source) == [(2, {"loss": 0.25})]


def test_the_table_of_yolo_is_read_where_it_lies_with_its_blanks(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    folder = work / "runs" / "detect" / "train"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text("   epoch,   train/box_loss,  metrics/mAP50(B)\n   1,   1.5,   0.25\n")
    (folder / "args.csv").write_text("epoch,loss\n1,9\n")
    assert points(source) == [(1, {"train/box_loss": 1.5, "metrics/mAP50(B)": 0.25})]


def test_the_log_of_keras_is_read_in_the_outputs(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    (work / "outputs" / "training.log").write_text("epoch,accuracy,loss\n0,0.5,0.75\n")
    assert points(source) == [(0, {"accuracy": 0.5, "loss": 0.75})]


def test_a_file_without_steps_or_numbers_says_nothing(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    version(work, 0).write_text("name,loss\nresnet,0.5\n")
    version(work, 1).write_text("step,loss\none,two\n1\n\n")
    version(work, 2).write_bytes(b"\xff\x00,\n\x00\n")
    assert points(source) == []


def test_files_in_a_folder_of_checkpoints_are_read_from_where_an_earlier_attempt_ended(work: Path) -> None:
    file = work / "exp" / "mlp" / "v0" / "metrics.csv"
    file.parent.mkdir(parents=True)
    file.write_text("step,loss\n1,0.5\n")
    source = TableFilePoints(work, work / "outputs", 0, (), [work / "exp"])
    file.write_text("step,loss\n1,0.5\n2,0.25\n")
    (file.parent / "stats.jsonl").write_text('{"step": 2, "Loss/G": {"mean": 0.5}}\nno object\n{"step": 3')
    assert points(source) == [(2, {"loss": 0.25}), (2, {"Loss/G/mean": 0.5})]
    (file.parent / "stats.jsonl").write_text('{"step": 2}\nno object\n{"step": 3, "acc": 0.75}\n')
    assert points(source) == [(3, {"acc": 0.75})]


def test_json_lines_of_another_name_are_no_metrics(work: Path) -> None:
    source = TableFilePoints(work, work / "outputs", 0)
    (work / "outputs" / "predictions.jsonl").write_text('{"id": 1, "score": 0.5}\n')
    assert points(source) == []


def test_what_was_restored_into_the_outputs_was_read_by_an_earlier_attempt(tmp_path: Path) -> None:
    """Also where the outputs are the folder of checkpoints, whose files are not restored as outputs."""
    job = Job(name="a", run="x", outputs="out", checkpoints=("out",))
    orders = Orders("r", "a-1", 2, 0, "key", job, "s", "")
    folder = NodeFolder(tmp_path / "node")
    out = folder.work / "out"
    out.mkdir(parents=True)
    folder.spool.mkdir(parents=True)
    (out / "log.txt").write_text('{"loss": 0.5, "epoch": 1}\n')
    (out / "metrics.csv").write_text("step,acc\n1,0.25\n")
    shipping = Shipping(MemoryStore(), orders, folder, Masking([]), StoreTrouble())
    shipping.begin_from(Snapshot(()))
    shipping.start([0])
    (out / "log.txt").write_text('{"loss": 0.5, "epoch": 1}\n{"loss": 0.25, "epoch": 2}\n')
    (out / "metrics.csv").write_text("step,acc\n1,0.25\n2,0.5\n")
    for step in shipping.steps():
        step()
    assert {name: (one.count, one.last) for name, one in shipping.metrics.summaries.now().items()} == {
        "loss": (1, 0.25),
        "acc": (1, 0.5),
    }
