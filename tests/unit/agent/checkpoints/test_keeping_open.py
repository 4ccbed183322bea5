"""Files that stay open in a checkpoint folder: cloned where the file system can, and named at once where it cannot."""

import errno
import os
from pathlib import Path

import pytest
from test_keeping import CountingStore, Run

from stoker.agent.checkpoints.folders import copies
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.growing import QUIET_S
from stoker.agent.checkpoints.folders.watching import STREAM_S
from stoker.model.snapshot import CheckpointSet
from stoker.stores.transfer.verified import Mark, mark_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(CountingStore(), tmp_path)


@pytest.fixture
def cloning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of a test seldom can: a copy in its place."""

    def copy(place: str, target: Path) -> Mark:
        target.write_bytes(Path(place).read_bytes())
        return mark_of(os.lstat(place))

    monkeypatch.setattr(copies, "_clone", copy)


def looks(run: Run, seconds: float, care: Care = Care.PATIENT) -> CheckpointSet | None:
    made = [one for _ in range(int(seconds / 0.25)) if (one := run.look(0.25, care))]
    return made[-1] if made else None


@pytest.mark.usefixtures("cloning")
def test_a_file_that_stays_open_is_in_the_set_as_it_was_when_it_held_still(run: Run) -> None:
    run.write("model_1", "1")
    log = run.write("log.jsonl", "one\n")
    run.open = [log]
    assert run.content(looks(run, STREAM_S + 4)) == {"model_1": b"1", "log.jsonl": b"one\n"}
    log.write_text("one\ntwo\n")
    assert run.content(looks(run, 4)) == {"model_1": b"1", "log.jsonl": b"one\ntwo\n"}
    assert looks(run, 4) is None, "nothing has changed"
    assert run.events == []


@pytest.mark.usefixtures("cloning")
def test_a_line_that_is_not_finished_is_waited_for(run: Run) -> None:
    log = run.write("log.jsonl", "one\nhal")
    run.write("model_1", "1")
    run.open = [log]
    assert run.content(looks(run, STREAM_S + 4)) == {"model_1": b"1"}
    log.write_text("one\nhalf\n")
    assert run.content(looks(run, 4))["log.jsonl"] == b"one\nhalf\n"


@pytest.mark.usefixtures("cloning")
def test_a_file_that_is_written_to_behind_its_clone_is_cloned_again(run: Run) -> None:
    buffer = run.write("buffer", b"\0" * 100)
    run.open = [buffer]
    run.write("model_1", "1")
    for number in range(24):
        buffer.write_bytes(bytes([number]) * 100)
        assert "buffer" not in (run.content(made) if (made := looks(run, QUIET_S + 0.25)) else {})
    [(kind, text)] = run.events
    assert kind == "checkpoint-left-out"
    assert (
        "`checkpoints/buffer` is in no checkpoint: the script keeps it open and writes to it without a pause of 2 s"
        in text
    )
    assert run.content(looks(run, 4))["buffer"] == bytes([23]) * 100


@pytest.mark.usefixtures("cloning")
def test_once_it_is_closed_it_is_a_file_like_others(run: Run) -> None:
    buffer = run.write("buffer", b"\0\1")
    run.open = [buffer]
    looks(run, STREAM_S + 4)
    buffer.write_bytes(b"\0\2")
    run.open = []
    assert run.content(looks(run, 2)) == {"buffer": b"\0\2"}
    assert list(run.folder.copies.iterdir()) == []


def test_where_the_file_system_cannot_clone_it_is_named_as_soon_as_it_is_known_to_stay_open(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: str, target: Path) -> Mark:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(copies, "_clone", refuse)
    buffer = run.write("buffer", "0")
    run.open = [buffer]
    for number in range(int(STREAM_S / 0.25) + 2):
        buffer.write_text(str(number))
        run.look(0.25)
    [(_, text)] = run.events
    assert text.startswith("`checkpoints/buffer` is in no checkpoint: the script keeps it open for writing")


def test_a_real_clone_is_a_copy_or_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    try:
        mark = copies._clone(str(source), tmp_path / "clone")
    except OSError as error:
        assert error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL)
    else:
        assert mark == mark_of(source.lstat())
        assert (tmp_path / "clone").read_bytes() == source.read_bytes()
