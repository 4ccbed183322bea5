"""Folders that change all the time: complete files get into a set whatever else changes, and halves never do.

Random scripts write concurrently into one folder, on a manual clock: pairs of files that are rewritten, folders of
several files, shards with an index, series of files that are written once, and a pointer, a link or another name for
the newest of a few.
"""

import heapq
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_keeping import CountingStore, Run

from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.growing import PARTIAL_S
from stoker.agent.checkpoints.folders.watching import STREAM_S

Writing = Iterator[float]  # yields how long it does nothing
Written = dict[str, float]  # by name: when a file that is written once was closed
Check = Callable[[dict[str, bytes]], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(CountingStore(), tmp_path)


class Script:
    """Parts that write at the same time, each at its own pace."""

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run = run
        self.chance = chance
        self.once: Written = {}
        self.checks: list[Check] = []
        self._due: list[tuple[float, int, Writing]] = []
        self._numbers = itertools.count()

    def add(self, part: Writing, check: Check | None = None) -> None:
        heapq.heappush(self._due, (self.run.now, next(self._numbers), part))
        if check:
            self.checks.append(check)

    def advance(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            at, number, part = heapq.heappop(self._due)
            self.run.now = at
            pause_s = next(part, None)
            if pause_s is not None:
                heapq.heappush(self._due, (at + pause_s, number, part))
        self.run.now = until

    def write(self, name: str, word: str, *, slow_s: float = 0.0, aside: bool = False) -> Writing:
        """A file of words; half of them exist while it is open."""
        path = self.run.ckpt / (f"{name}.tmp" if aside else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{word} ")
        if slow_s:
            self.run.open.append(path)
            yield slow_s
            self.run.open.remove(path)
        path.write_text(f"{word} end")
        os.utime(path, ns=(0, int(self.run.now * 1e9)))
        if aside:
            path.replace(self.run.ckpt / name)

    def pause(self, usual_s: float) -> float:
        return usual_s * self.chance.uniform(0.7, 1.3)

    def looks(self, seconds: float, care: Care, every_s: tuple[float, float]) -> dict[str, bytes] | None:
        """What the last set contains that was created meanwhile."""
        last, until = None, self.run.now + seconds
        while self.run.now < until:
            self.advance(self.run.now + self.chance.uniform(*every_s))
            if made := self.run.checkpoints.commit(care):
                self.run.checkpoints.tidy()
                last = {name: content for name, content in self.run.content(made).items() if ".tmp" not in name}
                for check in self.checks:
                    check(last)
        return last


def series(script: Script, folder: str, every_s: float, slow_s: float) -> Writing:
    for number in range(10_000):
        name = f"{folder}model_{number}.json"
        yield from script.write(name, str(number), slow_s=slow_s)
        script.once[name] = script.run.now
        yield script.pause(every_s)


def pair(script: Script, every_s: float, *, aside: bool) -> Writing:
    for number in range(10_000):
        for name in ("weights", "moments"):
            yield from script.write(name, str(number), slow_s=0.02, aside=aside)
            yield 0.01
        yield script.pause(every_s)


def folders(script: Script, every_s: float, keep: int) -> Writing:
    for number in range(10_000):
        for name in ("a", "b", "c"):
            yield from script.write(f"step-{number}/{name}", str(number), slow_s=0.03)
            yield 0.01
        for name in ("a", "b", "c"):
            if number >= keep:
                (script.run.ckpt / f"step-{number - keep}" / name).unlink()
                yield 0.01
        if number >= keep:
            (script.run.ckpt / f"step-{number - keep}").rmdir()
        yield script.pause(every_s)


def pointed(script: Script, every_s: float, keep: int) -> Writing:
    for number in range(10_000):
        yield from script.write(f"state-{number}.pt", str(number), slow_s=0.02)
        yield from script.write("latest", f"state-{number}.pt", aside=True)
        if number >= keep:
            (script.run.ckpt / f"state-{number - keep}.pt").unlink()
        yield script.pause(every_s)


def linked(script: Script, every_s: float, keep: int, *, symbolic: bool) -> Writing:
    """`last.pt` is another name of the newest file, or leads to it."""
    last, part = script.run.ckpt / "last.pt", script.run.ckpt / "last.pt.tmp"
    for number in range(10_000):
        newest = script.run.ckpt / f"step-{number}.pt"
        yield from script.write(newest.name, str(number), slow_s=0.01)
        part.symlink_to(newest.name) if symbolic else part.hardlink_to(newest)
        part.replace(last)
        (script.run.ckpt / f"step-{number - keep}.pt").unlink(missing_ok=True)
        yield script.pause(every_s)


def sharded(script: Script, every_s: float, keep: int) -> Writing:
    """Folders whose index is written last."""
    for number in range(10_000):
        for name in ("shard-0-of-2", "shard-1-of-2", "index"):
            yield from script.write(f"epoch-{number}/{name}", str(number), slow_s=0.01)
        if number >= keep:
            shutil.rmtree(script.run.ckpt / f"epoch-{number - keep}")
        yield script.pause(every_s)


def numbered(script: Script, every_s: float, keep: int) -> Writing:
    """Two files for each number."""
    for number in range(10_000):
        for name in ("net", "opt"):
            yield from script.write(f"{name}-{number}.pt", str(number), slow_s=0.01)
            (script.run.ckpt / f"{name}-{number - keep}.pt").unlink(missing_ok=True)
        yield script.pause(every_s)


def pointed_folders(script: Script, every_s: float, keep: int) -> Writing:
    """As Megatron and DeepSpeed save: folders of files, and one that names the newest of them."""
    for number in range(10_000):
        for name in ("model.pt", "optim.pt"):
            yield from script.write(f"iter-{number}/{name}", str(number), slow_s=0.01)
            yield 0.005
        yield from script.write("newest.txt", str(number))
        yield 0.002
        if number >= keep:
            shutil.rmtree(script.run.ckpt / f"iter-{number - keep}")
        yield script.pause(every_s)


def newest_folder_is_there(files: dict[str, bytes]) -> None:
    if "newest.txt" in files:
        named = files["newest.txt"].split()[0].decode()
        assert {f"iter-{named}/model.pt", f"iter-{named}/optim.pt"} <= files.keys(), f"`newest.txt` names `{named}`"


def whole(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert content.endswith(b" end"), f"`{name}` is half written"


def pair_is_one(files: dict[str, bytes]) -> None:
    assert files.get("weights") == files.get("moments")


def folders_are_whole(files: dict[str, bytes]) -> None:
    for name in {name.split("/")[0] for name in files if name.startswith("step-") and "/" in name}:
        assert {f"{name}/{part}" for part in "abc"} <= files.keys(), f"half of `{name}`"


def latest_is_there(files: dict[str, bytes]) -> None:
    if "latest" in files:
        named = files["latest"].split()[0].decode()
        assert files.get(named) == f"{named[6:-3]} end".encode(), f"`latest` names `{named}`"


def last_is_one_of_the_others(files: dict[str, bytes]) -> None:
    if "last.pt" in files:
        named = files["last.pt"].split()[0].decode()
        assert f"step-{named}.pt" in files, f"`last.pt` is of step {named}"


def indexed(files: dict[str, bytes]) -> None:
    for name in {name.split("/")[0] for name in files if name.startswith("epoch-")}:
        assert {f"{name}/{part}" for part in ("shard-0-of-2", "shard-1-of-2", "index")} <= files.keys(), name


def newest_number_has_both(files: dict[str, bytes]) -> None:
    numbers = [int(name[4:-3]) for name in files if name.startswith("net-")]
    assert not numbers or f"opt-{max(numbers)}.pt" in files


def closed_before(script: Script, moment: float) -> set[str]:
    return {name for name, at in script.once.items() if at < moment}


# --- one at a time


def test_files_that_are_written_once_are_committed_while_others_follow(run: Run) -> None:
    script = Script(run, random.Random(1))
    script.add(series(script, "", 0.15, 0.02), whole)
    made = script.looks(10, Care.PATIENT, (0.1, 0.3))
    assert made is not None
    assert closed_before(script, run.now - 6) <= made.keys()
    noticed = run.now
    made = script.looks(1.5, Care.HURRIED, (0.05, 0.08))
    assert made is not None
    assert closed_before(script, noticed + 1.0) <= made.keys(), "at a notice, whatever is closed"
    assert run.events == []


def test_a_folder_that_collects_them_is_no_different(run: Run) -> None:
    script = Script(run, random.Random(1))
    script.add(series(script, "xgb/", 0.15, 0.02), whole)
    script.looks(5, Care.PATIENT, (0.1, 0.3))
    noticed = run.now
    made = script.looks(1.5, Care.HURRIED, (0.05, 0.08))
    assert made is not None
    assert closed_before(script, noticed + 1.0) <= made.keys()


def test_an_open_log_beside_them_is_left_out_and_reported_at_once(run: Run) -> None:
    script = Script(run, random.Random(1))
    log = run.write("train.log", "line")
    run.open.append(log)
    script.add(series(script, "", 0.15, 0.02))
    made = script.looks(7, Care.PATIENT, (0.1, 0.3))
    assert made is not None
    assert "model_0.json" in made and "train.log" not in made
    [(kind, text)] = run.events
    assert kind == "checkpoint-left-out"
    assert text.startswith("`checkpoints/train.log` is in no checkpoint: the script keeps it open for writing")


def test_a_file_open_at_the_end_of_a_notice_is_named(run: Run) -> None:
    run.write("model", "1")
    run.open.append(run.write("optimizer", "ha"))
    made = Script(run, random.Random(1)).looks(1, Care.HURRIED, (0.05, 0.08))
    assert made == {"model": b"1"}
    [(_, text)] = run.events
    assert "`checkpoints/optimizer` is in no checkpoint: the script still had it open for writing" in text


def test_the_second_half_of_a_numbered_checkpoint_is_waited_for(run: Run) -> None:
    script = Script(run, random.Random(1))
    script.add(series(script, "", 0.15, 0.0))
    script.looks(5, Care.PATIENT, (0.1, 0.3))
    run.write("weights-7.pt", "7")
    run.open.append(run.write("moments-7.pt", "ha"))
    made = script.looks(STREAM_S - 1, Care.PATIENT, (0.1, 0.3))
    assert made is not None and "weights-7.pt" not in made
    run.open.clear()
    made = script.looks(4, Care.PATIENT, (0.1, 0.3))
    assert made is not None and {"weights-7.pt", "moments-7.pt"} <= made.keys()


def test_half_a_folder_is_left_out_even_at_a_notice(run: Run) -> None:
    run.write("checkpoint-1/model", "1")
    run.write("checkpoint-1/optimizer", "1")
    run.commit()
    run.write("checkpoint-2/model", "2")
    run.open.append(run.write("checkpoint-2/optimizer", "ha"))
    assert Script(run, random.Random(1)).looks(3, Care.HURRIED, (0.05, 0.08)) is None


def test_a_folder_that_lacks_a_file_of_the_others_is_waited_for(run: Run) -> None:
    for number in (1, 2):
        run.write(f"checkpoint-{number}/model", "1")
        run.write(f"checkpoint-{number}/optimizer", "1")
    run.commit()
    script = Script(run, random.Random(1))
    script.add(series(script, "", 0.15, 0.0))
    run.write("checkpoint-3/model", "3")
    made = script.looks(PARTIAL_S - 2, Care.PATIENT, (0.1, 0.3))
    assert made is not None and "model_0.json" in made and "checkpoint-3/model" not in made


def test_what_an_older_pointer_names_stays_although_the_script_removed_it(run: Run) -> None:
    script = Script(run, random.Random(3))
    script.add(pointed(script, 0.05, 2), latest_is_there)
    script.add(series(script, "", 0.05, 0.0), whole)
    run.write("state-0.pt", "0 end")
    run.write("latest", "state-0.pt end")
    run.commit()
    made = script.looks(20, Care.PATIENT, (0.1, 0.3))
    assert made is not None and "latest" in made and "model_9.json" in made


@pytest.mark.parametrize("seed", range(3))
def test_a_pointer_that_never_rests_is_in_the_set_with_what_it_names(run: Run, seed: int) -> None:
    script = Script(run, random.Random(seed))
    script.add(pointed(script, 0.4, 3), latest_is_there)
    made = script.looks(6, Care.PATIENT, (0.1, 0.12))
    assert made is not None and "latest" in made
    named = int(made["latest"].split()[0][6:-3])
    made = script.looks(2.5, Care.HURRIED, (0.05, 0.08))
    assert made is not None
    assert int(made["latest"].split()[0][6:-3]) > named, "at a notice, a newer one"


@pytest.mark.parametrize("looks_s", [(0.05, 0.08), (0.25, 0.4)])
def test_a_pointer_to_folders_is_renewed_at_a_notice_however_seldom_a_node_can_look(
    run: Run, looks_s: tuple[float, float]
) -> None:
    script = Script(run, random.Random(5))
    script.add(pointed_folders(script, 0.3, 3), newest_folder_is_there)
    script.looks(5, Care.PATIENT, (0.3, 0.6))
    made = script.looks(3, Care.HURRIED, looks_s)
    assert made is not None
    reached = max(int(one.name[5:]) for one in run.ckpt.glob("iter-*"))
    assert int(made["newest.txt"].split()[0]) >= reached - 3


def test_a_file_written_before_the_first_look_is_no_pause(run: Run) -> None:
    """A pause as long as the computer has been running would be waited for ever."""
    run.write("state", "1")
    run.look()
    assert run.checkpoints._watch.longest_pause_s < 1.0


def test_one_file_that_is_rewritten_all_the_time_holds_nothing_else_back(run: Run) -> None:
    script = Script(run, random.Random(1))

    def progress() -> Writing:
        for number in range(10_000):
            yield from script.write("progress.json", str(number), aside=True)
            yield script.pause(0.1)

    script.add(progress(), whole)
    script.looks(5, Care.PATIENT, (0.1, 0.2))
    run.write("best.pt", "1 end")
    made = script.looks(4, Care.PATIENT, (0.1, 0.2))
    assert made is not None and made["best.pt"] == b"1 end"
    run.write("best.pt", "2 end")
    made = script.looks(4, Care.PATIENT, (0.1, 0.2))
    assert made is not None and made["best.pt"] == b"2 end"


# --- whatever they do at the same time


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
@example(seed=9209)  # a pointer joined before it was known to be one
@example(seed=234)  # a folder is removed before it was ever in a set
@example(seed=69)  # a folder is removed while others are held as they were
def test_whatever_writes_beside_it_no_set_has_halves_and_none_lacks_what_is_closed(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    run = Run(CountingStore(), tmp_path_factory.mktemp("busy"))
    script = Script(run, chance)
    script.checks.append(whole)
    parts: list[tuple[Writing, Check | None]] = [
        (pair(script, chance.choice([0.1, 0.3, 1.5]), aside=chance.random() < 0.5), pair_is_one),
        (folders(script, chance.choice([0.1, 0.3, 1.5]), chance.randint(2, 4)), folders_are_whole),
        (pointed(script, chance.choice([0.05, 0.2, 1.5]), chance.randint(1, 4)), latest_is_there),
        (
            linked(script, chance.choice([0.05, 0.3, 1.5]), chance.randint(1, 3), symbolic=chance.random() < 0.5),
            last_is_one_of_the_others,
        ),
        (sharded(script, chance.choice([0.1, 0.3, 1.5]), chance.randint(2, 4)), indexed),
        (pointed_folders(script, chance.choice([0.05, 0.3, 1.5]), chance.randint(1, 4)), newest_folder_is_there),
        (numbered(script, chance.choice([0.1, 0.3, 1.5]), chance.randint(2, 4)), newest_number_has_both),
    ]
    for part, check in chance.sample(parts, chance.randint(0, 3)):
        script.add(part, check)
    script.add(series(script, chance.choice(["", "deep/", "very/deep/"]), chance.choice([0.1, 0.4]), 0.02))
    made = script.looks(chance.uniform(4, 16), Care.PATIENT, (0.1, chance.choice([0.15, 0.4])))
    noticed = run.now
    made = script.looks(2.5, Care.HURRIED, (0.05, 0.1)) or made
    assert made is not None
    assert closed_before(script, noticed + 1.5) <= made.keys()
