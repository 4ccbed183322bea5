"""TensorBoard event files, written by TensorBoard's own writer and read by ours."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from stoker.agent.shipping.metrics.eventfiles import EventFile, EventScalar, scalars
from stoker.agent.shipping.metrics.metrics import EventFilePoints, event_files, metric_name
from stoker.agent.shipping.metrics.points import LONGEST_NAME


def simple(tag: str, value: float) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def tensor(tag: str, proto: TensorProto) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, tensor=proto)])


def written(folder: Path, *summaries: Summary) -> EventFile:
    writer = EventFileWriter(str(folder))
    for step, summary in enumerate(summaries):
        writer.add_event(Event(wall_time=100.0 + step, step=step, summary=summary))
    writer.close()
    (file,) = folder.glob("*tfevents*")
    return EventFile(str(file))


def test_simple_values_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, simple("loss", 0.5), simple("loss", 0.25))
    assert list(file.fresh()) == [EventScalar(100.0, 0, "loss", 0.5), EventScalar(101.0, 1, "loss", 0.25)]
    assert list(file.fresh()) == []


def test_scalars_as_keras_writes_them_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, scalar_pb("epoch_loss", 0.5))
    assert list(file.fresh()) == [EventScalar(100.0, 0, "epoch_loss", 0.5)]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("value", [3, -2])
def test_every_kind_of_number_is_read(kind: str, value: int) -> None:
    value = abs(value) if kind == "uint8" else value
    proto = make_tensor_proto(np.array(value, dtype=kind))
    one_by_one = Event(step=1, summary=tensor("a", proto)).SerializeToString()
    assert [found.value for found in scalars(one_by_one)] == [value]
    content = TensorProto(dtype=proto.dtype, tensor_content=np.array(value, dtype=kind).tobytes())
    assert [found.value for found in scalars(Event(summary=tensor("a", content)).SerializeToString())] == [value]


def test_a_negative_step_is_read() -> None:
    assert [found.step for found in scalars(Event(step=-1, summary=simple("a", 1.0)).SerializeToString())] == [-1]


def test_what_is_no_scalar_is_passed_over(tmp_path: Path) -> None:
    vector = tensor("vector", make_tensor_proto(np.array([1.0, 2.0])))
    other = [histogram_pb("weights", np.arange(10.0)), text_pb("note", "hello"), hparams_pb({"lr": 0.1}), vector]
    file = written(tmp_path, *other, simple("loss", 1.0))
    assert [found.tag for found in file.fresh()] == ["loss"]


def test_a_record_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    whole = Path(written(tmp_path, simple("a", 1.0), simple("b", 2.0)).path).read_bytes()
    growing = tmp_path / "growing.tfevents"
    growing.touch()
    file, found = EventFile(str(growing)), []
    for byte in range(len(whole)):
        with growing.open("ab") as out:
            out.write(whole[byte : byte + 1])
        found += [scalar.tag for scalar in file.fresh()]
    assert found == ["a", "b"]


def test_large_records_are_passed_over(tmp_path: Path) -> None:
    large = tensor("image", TensorProto(dtype=7, string_val=[bytes(3 << 20)]))
    assert [found.tag for found in written(tmp_path, large, simple("after", 1.0)).fresh()] == ["after"]


def test_a_damaged_file_is_given_up(tmp_path: Path) -> None:
    file = written(tmp_path, simple("a", 1.0))
    path = Path(file.path)
    path.write_bytes(path.read_bytes() + struct.pack("<QI", 5, 0) + bytes(50))
    assert [found.tag for found in file.fresh()] == ["a"]
    assert file.broken


def test_a_file_that_is_gone_has_nothing_fresh(tmp_path: Path) -> None:
    assert list(EventFile(str(tmp_path / "gone")).fresh()) == []


def test_the_folder_of_a_split_is_part_of_the_name() -> None:
    assert metric_name("logs/validation/events.out.tfevents.1", "epoch_loss") == "validation/epoch_loss"
    assert metric_name("logs/version_0/events.out.tfevents.1", "loss") == "loss"
    assert metric_name("events.out.tfevents.1", "loss") == "loss"


def test_files_where_lightning_and_tensorboard_write_by_default_are_found(tmp_path: Path) -> None:
    written(tmp_path / "lightning_logs" / "version_0", simple("earlier", 0.5))  # restored with a checkpoint
    written(tmp_path / "runs" / "own", simple("in_outputs", 0.5))
    sources = event_files(tmp_path, tmp_path / "runs" / "own", 0, {})
    written(tmp_path / "lightning_logs" / "version_1", simple("train_loss", 0.25))
    points = [point for one in sources for point in one.fresh(final=True)]
    assert [dict(point.values) for point in points] == [{"in_outputs": 0.5}, {"train_loss": 0.25}]


def test_files_anywhere_below_the_outputs_are_found(tmp_path: Path) -> None:
    written(tmp_path / "logs" / "train", simple("loss", 0.5))
    written(tmp_path, simple("lr", float("nan")))
    points = list(EventFilePoints(tmp_path, 2).fresh(final=True))
    assert sorted((point.rank, point.step, *point.values.items()) for point in points) == [
        (2, 0, ("lr", None)),
        (2, 0, ("train/loss", 0.5)),
    ]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(
            b"\x10" + b"\xff" * 20_000 + b"\x01" + Event(summary=simple("loss", 0.5)).SerializeToString(),
            id="a step of many bits",
        ),
        pytest.param(
            Event(summary=tensor("half", TensorProto(dtype=19, half_val=[1 << 20]))).SerializeToString(),
            id="a half that is more than one",
        ),
    ],
)
def test_a_number_that_is_none_is_passed_over(event: bytes) -> None:
    assert list(scalars(event)) == []


def test_a_tag_of_any_length_makes_a_name_that_a_report_can_hold(tmp_path: Path) -> None:
    written(tmp_path, simple("layer." * 200, 0.5))
    (point,) = EventFilePoints(tmp_path, 0).fresh(final=False)
    assert [len(name) for name in point.values] == [LONGEST_NAME]
