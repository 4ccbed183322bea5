"""The parts of the hook of `exact: true`: records next to files, loops around a position, versions, how it is
loaded."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.agent.checkpoints.resuming import newest
from stoker.checkpoint import surroundings
from stoker.checkpoint.exact import places, sidecar
from stoker.checkpoint.exact.places import Loop
from stoker.errors import JobInvalid
from stoker.model.job.job import Job
from stoker.model.job.sections import BESIDE, CheckpointPaths
from stoker.model.snapshot import CheckpointSet, Entry

STARTUP = Path(sidecar.__file__).with_name("startup")
SOURCE = Path(sidecar.__file__).parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    path.write_bytes(b"first")
    return path


def saved(path: Path, content: bytes, **record: object) -> None:
    sidecar.announce(str(path), dict(record))
    path.write_bytes(content)
    sidecar.confirm(str(path), dict(record))


def test_what_is_kept_is_found_with_the_file_it_belongs_to(file: Path) -> None:
    saved(file, b"one", number=1, state=b"\0\xff")
    found = sidecar.find(str(file))
    assert found is not None
    assert (found["number"], found["state"]) == (1, b"\0\xff")
    assert sidecar.beside(str(file)).name == ".last.pt.stoker-exact"


def test_a_file_of_unknown_content_finds_nothing(file: Path) -> None:
    saved(file, b"one", number=1)
    file.write_bytes(b"of somebody else")
    assert sidecar.find(str(file)) is None


def test_killed_before_or_after_the_write_the_file_finds_its_own_record(file: Path) -> None:
    saved(file, b"one", number=1)
    sidecar.announce(str(file), {"number": 2})
    before = sidecar.find(str(file))
    file.write_bytes(b"two")
    after = sidecar.find(str(file))
    assert before is not None
    assert after is not None
    assert (before["number"], after["number"]) == (1, 2)


def test_a_renamed_file_takes_its_record_along_and_the_old_one_keeps_its_own_until_then(file: Path) -> None:
    part = file.with_name("last.part")
    saved(file, b"one", number=1)
    saved(part, b"two", number=2)
    sidecar.follow(str(part), str(file))
    before = sidecar.find(str(file))
    part.replace(file)
    after = sidecar.find(str(file))
    assert before is not None
    assert after is not None
    assert (before["number"], after["number"]) == (1, 2)


def test_records_of_files_that_the_script_removed_are_removed(file: Path) -> None:
    saved(file, b"one", number=1)
    file.unlink()
    saved(file.with_name("next.pt"), b"two", number=2)
    assert not sidecar.beside(str(file)).exists()


def test_a_large_file_is_distinguished_from_another_by_its_end_and_by_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3 << 20))
    first = sidecar.fingerprint(str(path))
    content = bytearray(3 << 20)
    content[-10] = 1
    path.write_bytes(content)
    assert sidecar.fingerprint(str(path)) != first


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"form": 9, "saves": []}', b'{"form": 1, "saves": 3}'])
def test_a_damaged_record_is_no_record(damaged: bytes, file: Path) -> None:
    sidecar.beside(str(file)).write_bytes(damaged)
    assert sidecar.find(str(file)) is None


def loops_at(code: str) -> list[Loop]:
    """Around the call of `here` in the script."""
    found: list[Loop] = []
    text = textwrap.dedent(code)
    name = f"<script {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"here": lambda: found.extend(places.loops_around(sys._getframe(1))), "__name__": "__main__"}
    exec(compile(text, name, "exec"), scope)
    return found


def test_loops_of_the_function_are_found_and_those_of_others_are_not() -> None:
    found = loops_at("""
        for outer in [0]:
            def work():
                while True:
                    for step in [1]:
                        here()
                    break
            work()
    """)
    assert [(one.header, one.target) for one in found] == [(4, ""), (5, "step")]


@pytest.mark.parametrize(
    ("code", "skips"),
    [
        ("for i, x in enumerate([1]):\n    if i < 0:\n        continue\n    here()", True),
        ("from itertools import islice\nfor x in islice([1], 0, None):\n    here()", True),
        ("for i, x in enumerate([1]):\n    if x is None:\n        pass\n    here()", False),
        ("for x in [1]:\n    here()", False),
    ],
)
def test_a_loop_that_passes_over_batches_by_itself_is_known(code: str, skips: bool) -> None:
    assert loops_at(code)[-1].skips is skips


def test_versions_out_of_range_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "version", lambda _: "1.9.1+cpu")
    assert "torch 1.9.1+cpu is not a supported version (from 2.0 on" in surroundings.is_known("torch")
    monkeypatch.setattr(surroundings, "version", lambda _: "2.13.0+cpu")
    assert surroundings.is_known("torch") == ""


def test_the_hook_gets_in_and_lets_another_sitecustomize_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n", encoding="utf-8")
    asked = "import os, sys; print(theirs, hasattr(os.replace, '__wrapped__'), 'numpy' in sys.modules, sys.path)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, tmp_path, SOURCE)))}
    done = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True True False [")
    assert str(STARTUP) not in done.stdout
    assert done.stderr == ""


def test_a_script_does_not_come_upon_records_and_removes_them_with_its_files(tmp_path: Path) -> None:
    script = """
        import os, pathlib, pickle
        for number in range(3):
            with open(f"epoch_{number}.pkl", "wb") as file:
                pickle.dump(number, file)
        print(sorted(os.listdir(".")) == sorted(one.name for one in pathlib.Path().iterdir()), len(os.listdir(".")))
        with os.scandir() as found:
            entries = sorted(found, key=lambda one: one.stat().st_mtime)
        print(len(entries), entries[-1].name)
        pathlib.Path("epoch_0.pkl").unlink(), os.remove("epoch_1.pkl")
        os.rename("epoch_2.pkl", "last.pkl")
        print(sorted(one.name for one in os.scandir()))
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, SOURCE)))}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    left = "['.last.pkl.stoker-exact', 'last.pkl']"
    assert (done.stdout, done.stderr) == (f"True 3\n6 epoch_2.pkl\n{left}\n", "")


def test_a_folder_with_records_is_removed_as_a_whole(tmp_path: Path) -> None:
    script = """
        import os, pickle, shutil
        os.mkdir("epoch-1")
        with open("epoch-1/model.pkl", "wb") as file:
            pickle.dump(1, file)
        shutil.copytree("epoch-1", "best")
        print(len(list(os.scandir("best"))))
        shutil.rmtree("epoch-1"), shutil.rmtree("best")
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, SOURCE)))}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr, list(tmp_path.iterdir())) == (0, "2\n", "", [])


def test_a_name_that_has_no_room_for_a_record_is_moved_and_removed_as_ever(tmp_path: Path) -> None:
    code = "import os; open('x' * 250, 'w').close(); os.replace('x' * 250, 'y' * 250); os.remove('y' * 250)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, SOURCE)))}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_files_beside_checkpoints_are_kept_with_them_and_never_resumed_from(tmp_path: Path) -> None:
    assert BESIDE == sidecar.SUFFIX
    paths = CheckpointPaths(["checkpoint.pth.tar", "out/*.pt", "folder/"])
    assert paths.root(".checkpoint.pth.tar.stoker-exact") == ".checkpoint.pth.tar.stoker-exact"
    assert paths.root("out/.a.pt.stoker-exact") == "out/.a.pt.stoker-exact"
    assert paths.root("out/.hidden") is None
    times = {".last.pt.stoker-exact": 2, "last.pt": 1}
    entries = tuple(Entry(name, sha256="0" * 64, size_bytes=1000) for name in times)
    (tmp_path / "last.pt").write_bytes(bytes(1000))
    made = CheckpointSet(1, 1, datetime.now(UTC), entries, changed_ns=times)
    assert newest(made, CheckpointPaths(["last.pt"]), tmp_path) == "last.pt"


@pytest.mark.parametrize("more", [{"nodes": "2..4"}, {"launcher": "mpi"}])
def test_a_changing_number_of_nodes_and_mpi_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(JobInvalid) as refused:
        Job.read({"name": "a", "run": "python a.py", "exact": True, **more})
    assert [one.field for one in refused.value.problems] == ["exact"]


@pytest.mark.parametrize("more", [{"processes": 4}, {"launcher": "torchrun"}, {"processes": "gpus"}, {"nodes": 4}])
def test_several_ranks_are_accepted(more: dict[str, object]) -> None:
    assert Job.read({"name": "a", "run": "python a.py", "exact": True, **more}).exact
