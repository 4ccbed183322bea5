"""What a notice finds in a checkpoint folder that is being written: all that is closed, and nothing that is half."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from test_keeping import CountingStore, Run, uploads
from test_keeping_busy import Script, last_is_one_of_the_others, latest_is_there, linked, pointed

from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.files import OpenForWriting, Writers
from stoker.agent.checkpoints.folders.growing import QUIET_S
from stoker.agent.checkpoints.folders.watching import DOUBTED_S


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(CountingStore(), tmp_path)


def noticed(script: Script) -> dict[str, bytes]:
    made = script.looks(1.5, Care.HURRIED, (0.02, 0.05))
    assert made is not None
    return made


# --- one file, several names


def test_a_link_to_a_file_does_not_make_it_look_rewritten(run: Run) -> None:
    step = run.write("step-1.pt", "1")
    run.commit()
    run.now += QUIET_S
    os.link(step, run.ckpt / "last.pt")
    run.look()
    (run.ckpt / "last.pt").unlink()
    os.link(step, run.ckpt / "best.pt")
    run.look()
    assert run.checkpoints._watch.rewrites == {}
    assert run.content(run.look(QUIET_S)) == {"step-1.pt": b"1", "best.pt": b"1"}


def test_several_names_of_one_file_are_one_content_that_is_read_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step = run.write("step-1.pt", "1")
    for name in ("last.pt", "best.pt"):
        os.link(step, run.ckpt / name)
    ship = run.checkpoints._contents.ship_open
    read: list[Any] = []

    def counted(*one: Any) -> Any:
        read.append(one)
        return ship(*one)

    monkeypatch.setattr(run.checkpoints._contents, "ship_open", counted)
    assert run.content(run.commit()).keys() == {"step-1.pt", "last.pt", "best.pt"}
    assert len(read) == 1


def test_permissions_are_no_new_content_but_to_be_executable_is_kept(run: Run) -> None:
    tool = run.write("tool.sh", "#!/bin/sh")
    run.commit()
    tool.chmod(0o640)
    assert run.commit() is None
    tool.chmod(0o750)
    made = run.commit()
    assert made and made.entries[0].executable


def test_a_file_whose_time_the_script_sets_is_read_again_when_it_changes(run: Run) -> None:
    path = run.write("model.pt", "one")
    os.utime(path, (5, 5))
    run.commit()
    path.write_text("two")
    os.utime(path, (5, 5))
    assert run.content(run.commit()) == {"model.pt": b"two"}


@pytest.mark.parametrize("every_s", [0.05, 0.3])
def test_at_a_notice_the_newest_file_is_there_under_both_of_its_names(run: Run, every_s: float) -> None:
    script = Script(run, random.Random(1))
    script.add(linked(script, every_s, 2, symbolic=False), last_is_one_of_the_others)
    script.looks(4, Care.PATIENT, (0.1, 0.25))
    made = noticed(script)
    newest = max(int(name[5:-3]) for name in made if name.startswith("step-"))
    reached = max(int(one.name[5:-3]) for one in run.ckpt.glob("step-*"))
    assert newest >= reached - 0.5 / every_s
    assert made["last.pt"] in {content for name, content in made.items() if name.startswith("step-")}
    assert int(made["last.pt"].split()[0]) >= reached - 0.5 / every_s


# --- what is removed, completed or left over meanwhile


def test_a_folder_of_many_files_that_is_removed_while_it_is_sent_is_in_the_set(run: Run) -> None:
    for number in range(300):
        run.write(f"step-1/{number}", str(number))
    run.look()
    folder = run.ckpt / "step-1"

    def remove(_key: str) -> None:
        if folder.exists():
            folder.rename(run.root / "removed")
            for one in (run.root / "removed").iterdir():
                one.unlink()

    run.store.before_put = remove
    made = run.content(run.look(QUIET_S))
    assert made == {f"step-1/{number}": str(number).encode() for number in range(300)}
    assert len(uploads(run.store)) == 300


def test_a_file_that_is_finished_during_a_look_is_not_rewritten_by_that(run: Run) -> None:
    path = run.write("model_1.json", "")

    def scan() -> OpenForWriting:
        path.write_text("whole")  # and closed, before anybody could see it open
        return OpenForWriting(set())

    run.checkpoints._open_files = scan
    assert run.look(0.05, Care.HURRIED) is None
    run.look(0.05, Care.HURRIED)
    assert run.checkpoints._watch.rewrites == {}


def test_a_file_that_a_killed_writer_left_is_not_taken_for_a_closed_one(run: Run) -> None:
    run.write("step-1.pt", "1")
    run.commit()
    half = run.write("step-2.pt", "ha")
    run.open = [half]
    assert run.look(0.05, Care.HURRIED) is None
    run.open, run.some_ended = [], True
    assert run.look(0.05, Care.HURRIED) is None
    run.some_ended = False
    assert run.look(DOUBTED_S / 2, Care.HURRIED) is None
    assert run.content(run.look(DOUBTED_S, Care.HURRIED)).keys() == {"step-1.pt", "step-2.pt"}, "nobody was killed"


def test_a_file_that_is_empty_may_have_been_opened_this_moment(run: Run) -> None:
    """To open a file for writing empties it before the system shows that it is open."""
    run.write("latest", "step-1")
    run.commit()
    run.write("latest", "")
    assert run.look(0.05, Care.HURRIED) is None
    assert run.look(DOUBTED_S - 0.1, Care.HURRIED) is None
    assert run.content(run.look(DOUBTED_S, Care.HURRIED)) == {"latest": b""}, "it is meant to be empty"


def test_a_link_that_moves_on_while_the_folder_is_looked_at_is_not_taken(run: Run) -> None:
    run.write("step-1.pt", "1")
    (run.ckpt / "last.pt").symlink_to("step-1.pt")
    run.commit()
    (run.ckpt / "step-1.pt").unlink()  # the link was seen before

    def move_on() -> OpenForWriting:
        (run.ckpt / "last.pt").unlink()
        (run.ckpt / "last.pt").symlink_to("step-2.pt")
        run.write("step-2.pt", "2")
        run.checkpoints._open_files = lambda: OpenForWriting(set())
        return OpenForWriting(set())

    run.checkpoints._open_files = move_on
    run.now += QUIET_S
    made = run.look(0.05, Care.HURRIED) or run.look(QUIET_S, Care.HURRIED)
    assert made
    assert {f"checkpoints/{one.target}" for one in made.entries if one.target} < {one.path for one in made.entries}


def test_a_process_that_ended_since_the_last_time_is_noticed() -> None:
    pids = [os.getpid()]
    writers = Writers(lambda: pids)
    assert not writers().some_ended
    pids.append(2**22 + 1)  # more than there can be
    assert writers().some_ended
    pids.pop()
    assert not writers().some_ended


# --- what belongs together


def test_at_a_notice_one_closed_file_is_enough(run: Run) -> None:
    run.open = [run.write("other.pt", "ha")]
    run.write("model_1.json", "1")
    assert run.content(run.look(0.05, Care.HURRIED)) == {"model_1.json": b"1"}


@pytest.mark.parametrize("every_s", [0.05, 0.3])
def test_at_a_notice_a_pointer_and_the_newest_file_that_it_can_name_are_there(run: Run, every_s: float) -> None:
    script = Script(run, random.Random(2))
    script.add(pointed(script, every_s, 2), latest_is_there)
    script.looks(4, Care.PATIENT, (0.1, 0.25))
    named = int(noticed(script)["latest"].split()[0][6:-3])
    reached = max(int(one.name[6:-3]) for one in run.ckpt.glob("state-*"))
    assert named >= reached - 0.5 / every_s


def test_one_of_two_files_that_are_rewritten_in_turn_is_not_taken_for_one_that_is_rewritten_alone(run: Run) -> None:
    for number in range(3):
        for name in ("model", "optimizer"):
            run.write(name, str(number))
            run.look(0.3)
        run.commit()
    run.write("model", "3")
    run.open = [run.write("log-99", "ha")]
    for _ in range(4):
        assert run.look(0.05, Care.HURRIED) is None


def test_a_number_that_lacks_a_file_which_the_others_have_is_waited_for(run: Run) -> None:
    for number in (1, 2):
        run.write(f"model-{number}.pt", str(number))
        run.write(f"optimizer-{number}.pt", str(number))
    run.commit()
    run.write("model-3.pt", "3")
    run.open = [run.write("unrelated", "ha")]
    for _ in range(10):
        assert run.look(0.05, Care.HURRIED) is None
    run.write("optimizer-3.pt", "3")
    assert {"model-3.pt", "optimizer-3.pt"} <= run.content(run.look(0.05, Care.HURRIED)).keys()


def test_a_new_folder_that_keeps_the_last_few_of_many_files_is_no_checkpoint_by_itself(run: Run) -> None:
    for number in range(4):
        run.write(f"deep/er/model-{number}.pt", str(number))
        run.look(0.1)
        (run.ckpt / f"deep/er/model-{number - 1}.pt").unlink(missing_ok=True)
    run.open = [run.write("deep/er/model-4.pt", "ha")]
    assert run.content(run.look(0.1, Care.HURRIED)) == {"deep/er/model-3.pt": b"3"}


def test_pairs_that_are_rewritten_all_the_time_are_named_during_the_notice(run: Run) -> None:
    for step in range(40):
        for name in ("model", "optimizer"):
            run.write(name, f"{name} {step}")
        assert run.look(0.05, Care.HURRIED if step > 5 else Care.PATIENT) is None
    [(_, text)] = run.events
    assert text.startswith("`checkpoints/model` is in no checkpoint: it is rewritten all the time, and so is")
