"""A node so busy that a script saves several times while one look at its folders is thought over."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_keeping import CountingStore, Run

from stoker.agent.checkpoints.folders import files
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.files import OpenForWriting
from stoker.agent.checkpoints.folders.growing import QUIET_S
from stoker.agent.checkpoints.folders.watching import FoundFile


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(CountingStore(), tmp_path)


def held_open(run: Run) -> list[str]:
    """Only what lies in its folder: other tests' threads open and close files of their own."""
    targets = [_target(one) for one in Path("/proc/self/fd").iterdir()]
    return [target for target in targets if str(run.ckpt) in target]


def save_folder(run: Run, number: int, *, pointer: bool) -> None:
    for part in range(20):
        run.write(f"step-{number}/{part}", f"{number} {part}")
    if pointer:
        run.write("latest", f"step-{number}")
    shutil.rmtree(run.ckpt / f"step-{number - 2}", ignore_errors=True)


@pytest.mark.parametrize("pointer", [False, True])
def test_a_script_that_moves_on_behind_every_look_does_not_keep_a_notice_from_being_heeded(
    run: Run, monkeypatch: pytest.MonkeyPatch, pointer: bool
) -> None:
    numbers = iter(range(1000))
    for _ in range(3):
        save_folder(run, next(numbers), pointer=pointer)
        run.look(0.3)
    choose = run.checkpoints._choosing.choose

    def choose_late(*given: Any) -> Any:
        for _ in range(3):
            save_folder(run, next(numbers), pointer=pointer)
        return choose(*given)

    monkeypatch.setattr(run.checkpoints._choosing, "choose", choose_late)
    made = next((made for _ in range(4) if (made := run.look(0.3, Care.HURRIED))), None)
    kept = run.content(made)
    newest = kept["latest"].decode() if pointer else max(name.partition("/")[0] for name in kept)
    assert {name for name in kept if name.startswith(f"{newest}/")} == {f"{newest}/{part}" for part in range(20)}
    assert all(kept[f"{newest}/{part}"] == f"{newest[5:]} {part}".encode() for part in range(20))


def test_a_small_file_that_is_rewritten_in_place_behind_the_look_is_kept_as_it_was_seen(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write("state.json", "0")
    run.look(0.3)
    choose, numbers = run.checkpoints._choosing.choose, iter(range(1, 100))

    def choose_late(*given: Any) -> Any:
        run.write("state.json", str(next(numbers)))
        return choose(*given)

    monkeypatch.setattr(run.checkpoints._choosing, "choose", choose_late)
    assert run.content(run.look(0.3, Care.HURRIED)) == {"state.json": b"0"}


@pytest.mark.parametrize("words", ["step-{}", "{}", '{{"newest": "checkpoints/step-{}"}}'])
@pytest.mark.parametrize("care", [Care.PATIENT, Care.HURRIED])
def test_no_first_set_lacks_the_file_that_says_which_folder_is_meant(run: Run, care: Care, words: str) -> None:
    made, numbers = None, iter(range(1000))

    def save() -> OpenForWriting:
        number = next(numbers)
        for name in ("model", "optimizer"):
            run.write(f"step-{number}/{name}", str(number))
        run.write("latest", words.format(number))
        return OpenForWriting(set())

    run.checkpoints._open_files = save  # so it does during every look
    for _ in range(25 if care is Care.PATIENT else 4):
        save()
        made = made or run.look(0.4 if care is Care.PATIENT else 0.2, care)
    run.checkpoints._open_files = lambda: OpenForWriting(set())
    assert "latest" in run.content(made or run.look(QUIET_S, care) or run.look(QUIET_S, care))


def test_a_file_that_is_rewritten_all_the_time_and_names_nothing_holds_no_set_back(run: Run) -> None:
    made = None
    for number in range(40):
        run.write(f"model-{number}.pt", str(number))
        run.open = [run.write("progress.json", f'{{"loss": 0.{number}, "speed": {number}}}')]
        made = made or run.look(0.4)
    assert "model-0.pt" in run.content(made)


def test_a_file_that_is_rewritten_during_every_look_is_not_one_that_stays_open(run: Run) -> None:
    numbers = iter(range(1000))

    def rewrite() -> OpenForWriting:
        run.write("latest", f"step-{next(numbers)}")
        return OpenForWriting(set())

    rewrite()
    run.checkpoints._open_files = rewrite
    for _ in range(30):
        run.look(0.3)
    assert run.checkpoints._watch.streams(run.now) == set()
    assert run.events == [] or "keeps it open" not in run.events[0][1]


def test_a_folder_that_is_removed_behind_the_look_that_held_it_is_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(run, 0, pointer=False)
    run.commit()
    save_folder(run, 1, pointer=False)
    run.open = [run.write("step-2/0", "ha")]
    hold = run.checkpoints._pins.hold

    def hold_and_remove(some: list[FoundFile], known: Any) -> set[str]:
        gone = hold(some, known)
        if any(one.path.startswith("checkpoints/step-1/") for one in some):
            shutil.rmtree(run.ckpt / "step-1", ignore_errors=True)
        return gone

    monkeypatch.setattr(run.checkpoints._pins, "hold", hold_and_remove)
    assert {f"step-1/{part}" for part in range(20)} <= run.content(run.look(0.3, Care.HURRIED)).keys()


def test_where_looks_are_far_apart_a_pointer_is_taken_as_it_is(run: Run) -> None:
    run.write("state-0.pt", "0")
    run.write("latest", "state-0.pt")
    run.commit()
    run.open = [run.write("log-99", "ha")]
    taken = []
    for number in range(1, 3):  # half a second apart, and each soon after a save
        run.now += 0.55
        run.write(f"state-{number}.pt", str(number))
        run.write("latest", f"state-{number}.pt")
        run.checkpoints._watch.look(run.now)  # as the time on the file would tell
        taken.append(run.look(0.05, Care.HURRIED))
    assert run.content(taken[1])["latest"] == b"state-2.pt"


def test_a_pointer_beside_numbered_folders_is_taken_at_once_although_their_files_have_plain_names(run: Run) -> None:
    for number in range(3):
        for name in ("model", "optimizer"):
            run.write(f"step-{number}/{name}", str(number))
        run.write("latest", f"step-{number}")
        run.look(0.05)
        run.look(0.3)
    run.commit()
    run.open = [run.write("log-99", "ha")]
    kept: dict[str, bytes] = {}
    for number in range(3, 8):
        for name in ("model", "optimizer"):
            run.write(f"step-{number}/{name}", str(number))
        run.write("latest", f"step-{number}")
        for pause_s in (0.05, 0.12):
            made = run.look(pause_s, Care.HURRIED)
            kept = run.content(made) if made else kept
    assert kept["latest"] == b"step-7"


def test_nothing_is_held_open_behind_a_hurry(run: Run) -> None:
    for number in range(50):
        run.write(f"step-{number}.pt", str(number))
    run.look(0.3, Care.HURRIED)
    run.write("step-50.pt", "50")
    assert run.look(0.0, Care.HURRIED) is None
    run.look(0.3)
    assert held_open(run) == []


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""


def test_a_node_that_may_open_few_files_commits_many_of_them_at_a_notice(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, limit = resource.getrlimit(resource.RLIMIT_NOFILE), resource.setrlimit
    for part in range(500):
        run.write(f"step-1/{part}", f"{part}")
    spare = len(list(Path("/proc/self/fd").iterdir())) + 20
    monkeypatch.setattr(files, "SPARE", spare)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)  # as if there were no more than this
    limit(resource.RLIMIT_NOFILE, (spare + 128, usual[1]))
    try:
        made = next((made for _ in range(4) if (made := run.look(0.3, Care.HURRIED))), None)
    finally:
        limit(resource.RLIMIT_NOFILE, usual)
    assert len(run.content(made)) == 500


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_file_that_became_a_folder_or_a_pipe_behind_the_look_is_not_read(
    run: Run, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    for name in ("model.pt", "other.pt"):
        run.write(name, "1")
    file = run.ckpt / "model.pt"
    held: list[int] = []
    hold = run.checkpoints._hold_speaking

    def hold_late(speaking: list[FoundFile]) -> None:
        if file.is_file():
            file.unlink()
            make(file)
            held.extend([] if file.is_dir() else [os.open(file, os.O_RDWR)])  # else a pipe would be at its end
        hold(speaking)

    monkeypatch.setattr(run.checkpoints, "_closer", replace(run.checkpoints._closer, first=hold_late))
    looks = [run.look(0.3, Care.HURRIED) for _ in range(4)]
    run.checkpoints._pins.release()
    assert len(held_open(run)) == len(held)
    assert "other.pt" in run.content(next(filter(None, looks), None))
    for fd in held:
        os.close(fd)


def test_what_is_in_the_store_is_not_held_open(run: Run) -> None:
    for part in range(50):
        run.write(f"step-1/{part}", f"{part}")
    made = next((made for _ in range(4) if (made := run.look(0.3, Care.HURRIED))), None)
    assert len(run.content(made)) == 50
    run.look(0.3, Care.HURRIED)
    assert len(run.checkpoints._pins) == 0
