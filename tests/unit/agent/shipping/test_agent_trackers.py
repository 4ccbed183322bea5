"""Metrics in files of MLflow and W&B, which their own packages have written: see `tracked/make.py`."""

from __future__ import annotations

import random
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stoker.agent.shipping.metrics.points import LONGEST_NAME
from stoker.agent.shipping.metrics.trackers import tracker_points
from stoker.agent.shipping.metrics.trackers.mlflowfiles import CHUNK_BYTES, MOST_ROWS
from stoker.agent.shipping.metrics.trackers.tracked import TrackedPoints
from stoker.agent.shipping.metrics.trackers.wandbfiles import WandbFile, history

WRITTEN = Path(__file__).parent / "tracked"
RUN = "c2230d3211be457e9700b89d08a53eac"
Found = list[tuple[float | None, dict[str, float | None]]]
W_AND_B: Found = [
    (0, {"loss": 1.0, "val/acc": 0.0, "odd": -1.5, "nested.a": 0.0}),
    (1, {"loss": 0.5, "val/acc": 0.25, "odd": None, "nested.a": 1.0}),
    (2, {"loss": 1 / 3, "val/acc": 0.5, "odd": None, "nested.a": 2.0}),
    (3, {"loss": 0.125}),
    (100, {"loss": 0.1}),
]


def sources(work: Path, env: Mapping[str, str] | None = None) -> list[TrackedPoints]:
    (work / "outputs").mkdir(exist_ok=True)
    return tracker_points(work, work / "outputs", 0, env or {})


def fresh(found: Sequence[TrackedPoints]) -> Found:
    return [(one.step, dict(one.values)) for source in found for one in source.fresh(final=True)]


def store(top: Path, name: str = "loss", run: str = RUN) -> Path:
    file = top / "0" / run / "metrics" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def database(file: Path) -> sqlite3.Connection:
    made = sqlite3.connect(file)
    made.executescript((WRITTEN / "metrics.sql").read_text())
    return made


def row(
    made: sqlite3.Connection, value: object, step: object = 7, key: object = "acc", at: object = 1_700_000_000_000
) -> None:
    made.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, 0)", (key, value, at, RUN, step))
    made.commit()


def run_file(top: Path, content: bytes) -> Path:
    file = top / "wandb" / "offline-run-20250101_120000-a1b2c3d4" / "run-a1b2c3d4.wandb"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_the_database_of_mlflow_is_read_while_it_grows(tmp_path: Path) -> None:
    found = sources(tmp_path)
    made = database(tmp_path / "mlflow.db")
    points = fresh(found)
    assert [step for step, values in points if "loss" in values] == [0, 1, 2, 3, 0]
    assert [values["odd name"] for _, values in points if "odd name" in values] == [-1.5, -1.5, None, None]
    assert {name for _, values in points for name in values} == {"loss", "val/acc", "odd name"}
    row(made, 0.75)
    assert fresh(found) == [(7, {"acc": 0.75})]
    assert fresh(found) == []


def test_a_database_that_the_script_is_writing_to_is_read_the_next_time(tmp_path: Path) -> None:
    found = sources(tmp_path)
    made = database(tmp_path / "mlflow.db")
    made.execute("BEGIN EXCLUSIVE")
    assert fresh(found) == []
    made.rollback()
    assert len(fresh(found)) == 13


def test_what_a_database_held_before_the_script_started_is_not_read_again(tmp_path: Path) -> None:
    made = database(tmp_path / "mlflow.db")
    found = sources(tmp_path)
    assert fresh(found) == []
    row(made, 0.5)
    assert fresh(found) == [(7, {"acc": 0.5})]


def test_the_database_that_the_variable_names_is_read(tmp_path: Path) -> None:
    found = sources(tmp_path, {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/tracked.sqlite"})
    (tmp_path / "other.sqlite").touch()
    row(database(tmp_path / "tracked.sqlite"), 0.5)
    assert fresh(found)[-1] == (7, {"acc": 0.5})


def test_a_database_of_strange_rows_or_none_at_all_says_only_what_it_can(tmp_path: Path) -> None:
    found = sources(tmp_path)
    (tmp_path / "outputs" / "mlflow.db").write_bytes(b"SQLite format 3\0" + random.Random(1).randbytes(5000))
    endless = sqlite3.connect(tmp_path / "mlruns.db")
    endless.execute(
        "CREATE VIEW metrics AS WITH RECURSIVE n(rowid) AS (SELECT 1 UNION ALL SELECT 2 FROM n) SELECT rowid FROM n"
    )
    endless.close()
    made = sqlite3.connect(tmp_path / "mlflow.db")
    made.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
    for value, key in (("text", "a"), (None, "a"), (0.5, b"\xff"), (0.5, None)):
        row(made, value, key=key)
    row(made, 0.5, step="one")
    row(made, 0.5, key="k" * 100_000, at=1 << 62)
    assert fresh(found) == [(7, {"k" * LONGEST_NAME: 0.5})]


def test_a_large_database_is_read_in_parts(tmp_path: Path) -> None:
    found = sources(tmp_path)
    made = sqlite3.connect(tmp_path / "mlflow.db")
    made.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
    rows = [("loss", 0.5, 1_700_000_000_000, RUN, step, 0) for step in range(MOST_ROWS + 10)]
    made.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    made.commit()
    assert (len(fresh(found)), found[0].behind) == (MOST_ROWS, True)
    assert (len(fresh(found)), found[0].behind) == (10, False)


def test_the_files_of_mlflow_are_read_wherever_they_lie(tmp_path: Path) -> None:
    found = sources(tmp_path, {"MLFLOW_TRACKING_URI": "file:./store"})
    places = [tmp_path / "mlruns", tmp_path / "store", tmp_path / "outputs" / "tracking"]
    for number, top in enumerate(places):
        store(top, f"val/acc{number}").write_text("1700000000000 0.5 3\n1700000001000 nan 4 data digest\n")
    store(tmp_path / "mlruns" / ".trash").write_text("1700000000000 9 9\n")
    store(tmp_path / "mlruns", run="models").write_text("1700000000000 9 9\n")
    points = fresh(found)
    assert {name for _, values in points for name in values} == {"val/acc0", "val/acc1", "val/acc2"}
    assert [(step, values.get("val/acc0")) for step, values in points if "val/acc0" in values] == [(3, 0.5), (4, None)]


def test_lines_of_mlflow_count_once_and_when_they_are_complete(tmp_path: Path) -> None:
    file = store(tmp_path / "mlruns")
    file.write_text("1700000000000 9 9\n")  # of an earlier attempt
    found = sources(tmp_path)
    with file.open("a") as growing:
        for text, points in (
            ("1700000000000 0.5 1\n17", [(1, {"loss": 0.5})]),
            ("00000000000 0.25", []),
            (" 2\n", [(2, {"loss": 0.25})]),
        ):
            growing.write(text)
            growing.flush()
            assert fresh(found) == points


def test_lines_that_are_none_of_mlflow_are_passed_over(tmp_path: Path) -> None:
    found = sources(tmp_path)
    lines = [
        b"",
        b"1",
        b"one 0.5 1",
        b"1 two 1",
        b"1 0.5 step",
        b"\xff\x00 1 1",
        b"9" * 50 + b" 0.5 " + b"9" * 50,
        b"1 0.5 2",
    ]
    store(tmp_path / "mlruns", "n" * 150 + "/" + "m" * 150).write_bytes(b"\n".join(lines) + b"\n")
    points = fresh(found)
    assert [step for step, _ in points] == [None, 2]
    assert {len(name) for _, values in points for name in values} == {LONGEST_NAME}
    store(tmp_path / "mlruns", "endless").write_bytes(b"7" * (2 * CHUNK_BYTES) + b"\n1 0.5 3\n")
    assert [fresh(found) for _ in range(3)] == [[], [], [(3, {"endless": 0.5})]]


def test_the_history_of_an_offline_run_is_read(tmp_path: Path) -> None:
    found = sources(tmp_path)
    run_file(tmp_path, (WRITTEN / "offline.wandb").read_bytes())
    assert fresh(found) == W_AND_B
    assert fresh(found) == []


def test_an_offline_run_is_found_in_the_outputs_and_where_the_variable_sends_it(tmp_path: Path) -> None:
    found = sources(tmp_path, {"WANDB_DIR": "logs"})
    for top in (tmp_path / "outputs", tmp_path / "logs"):
        run_file(top, (WRITTEN / "offline.wandb").read_bytes())
    assert fresh(found) == W_AND_B + W_AND_B


@pytest.mark.parametrize("piece", [1000, 4099, 32 << 10])
def test_an_offline_run_that_grows_is_read_once(tmp_path: Path, piece: int) -> None:
    whole = (WRITTEN / "offline.wandb").read_bytes()
    found = sources(tmp_path)
    points = []
    for end in [*range(0, len(whole), piece), len(whole)]:
        run_file(tmp_path, whole[:end])
        points += fresh(found)
    assert points == W_AND_B


def test_an_offline_run_that_was_restored_is_not_read_again(tmp_path: Path) -> None:
    whole = (WRITTEN / "offline.wandb").read_bytes()
    run_file(tmp_path, whole[: len(whole) // 2])
    found = sources(tmp_path)
    run_file(tmp_path, whole)
    assert fresh(found) == W_AND_B[3:]


@pytest.mark.parametrize("content", [b":W&B", b"other words", b":W&B\xe1\xbe\x00" + bytes(40_000), bytes(100)])
def test_a_file_that_is_no_run_says_nothing(tmp_path: Path, content: bytes) -> None:
    found = sources(tmp_path)
    run_file(tmp_path, content)
    assert fresh(found) == fresh(found) == []


def test_any_damage_of_an_offline_run_adds_nothing(tmp_path: Path) -> None:
    whole = (WRITTEN / "offline.wandb").read_bytes()
    some = random.Random(7)
    for number in range(200):
        damaged = bytearray(whole)
        for _ in range(some.choice([1, 10, 1000])):
            damaged[some.randrange(len(damaged))] = some.randrange(256)
        file = run_file(tmp_path / str(number), bytes(damaged))
        found = [(one.step, set(one.values)) for one in WandbFile(file).fresh()]
        expected = [(step, set(values)) for step, values in W_AND_B]
        assert found == expected[: len(found)]


def record(item: bytes) -> bytes:
    inner = b"\x0a" + bytes([len(item)]) + item
    return b"\x12" + bytes([len(inner)]) + inner


def test_a_record_of_strange_fields_says_nothing() -> None:
    good = record(b"\x0a\x01a\x82\x01\x030.5")
    read = history(good)
    assert read and dict(read.values) == {"a": 0.5}
    for text in (b"[[[", b"1e9999x", b'"0.5"', b"true", b"null", b"\xff"):
        assert history(record(b"\x0a\x01a\x82\x01" + bytes([len(text)]) + text)) is None
    for size in range(len(good)):
        history(good[:size])
    deep = b'{"a":' * 30 + b"1" + b"}" * 20
    assert history(record(b"\x0a\x01a\x82\x01" + b"\xff\x01" + deep)) is None
    assert history(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") is None


def test_a_checksum_that_is_wrong_ends_the_reading(tmp_path: Path) -> None:
    data = record(b"\x0a\x01a\x82\x01\x030.5")
    good = struct.pack("<IHB", zlib.crc32(data, zlib.crc32(b"\1")), len(data), 1) + data
    bad = struct.pack("<IHB", 1, len(data), 1) + data
    file = WandbFile(run_file(tmp_path, b":W&B\xe1\xbe\x00" + good + bad + good))
    assert [dict(one.values) for one in file.fresh()] == [{"a": 0.5}]
    assert file.broken
