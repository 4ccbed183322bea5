"""Files of a venv to packs and back, and what neither side accepts."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from uv import find_uv_bin

from stoker.agent.environment.packing import NotRelocatable, files_of, keep, read_list
from stoker.agent.environment.system import system_of
from stoker.agent.environment.unpacking import LISTED, bring, note_files
from stoker.errors import Corrupt, Malformed
from stoker.model.environment import BuiltEnvironment
from stoker.model.snapshot import Entry, EntryKind
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

SHELF = layout.environments("ada")
HEAD = BuiltEnvironment("1" * 32, "ants", "requirements.txt", "3.11.2", "linux", datetime(2026, 3, 1, tzinfo=UTC))
LARGE = os.urandom(30 << 20)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def venv(place: Path, **files: bytes) -> Path:
    """With a large file, small ones, a program and a link."""
    given = {"lib/large.so": LARGE, "lib/empty.py": b"", "lib/a.py": b"a", "bin/tool": b"#!/bin/sh\n"}
    for path, data in (given | {path.replace("_", "/"): data for path, data in files.items()}).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
        os.utime(place / path, ns=(10**18, 10**18))
    (place / "bin/tool").chmod(0o755)
    (place / "lib/liba.so").symlink_to("large.so")
    for own in ("pyvenv.cfg", "bin/python3", "bin/activate.fish", ".stoker-complete"):
        (place / own).write_text("of this node")
    return place


def kept(store: FolderStore, place: Path) -> BuiltEnvironment:
    files = files_of(place)
    note_files(place, [one.entry for one in files])
    return keep(store, SHELF, HEAD, files)[0]


def test_every_file_comes_back_as_it_was_and_nothing_of_the_other_node(tmp_path: Path, store: FolderStore) -> None:
    head = kept(store, venv(tmp_path / "one" / "x"))
    there = tmp_path / "two" / "y"
    there.mkdir(parents=True)
    bring(store, SHELF, read_list(store, SHELF, head), there)
    assert sorted(path.name for path in there.rglob("*") if not path.is_dir()) == [
        "a.py", "empty.py", "large.so", "liba.so", "tool"
    ]  # fmt: skip
    assert hashlib.sha256((there / "lib/liba.so").read_bytes()).digest() == hashlib.sha256(LARGE).digest()
    assert os.access(there / "bin/tool", os.X_OK)
    assert not os.access(there / "lib/a.py", os.X_OK)
    assert (there / "lib/a.py").stat().st_mtime_ns == 10**18
    assert (head.files, head.size_bytes) == (5, len(LARGE) + 11)


def test_files_that_another_venv_has_unchanged_are_linked(tmp_path: Path, store: FolderStore) -> None:
    one = venv(tmp_path / "one")
    head = kept(store, one)
    (one / "lib/a.py").write_bytes(b"b")
    two = tmp_path / "two"
    two.mkdir()
    brought = bring(store, SHELF, read_list(store, SHELF, head), two)
    assert (brought.linked_files, brought.downloaded_bytes) == (3, 1)
    assert (two / "lib/a.py").read_bytes() == b"a"
    assert (two / "lib/large.so").samefile(one / "lib/large.so")


def test_only_what_no_earlier_environment_has_is_uploaded(tmp_path: Path, store: FolderStore) -> None:
    kept(store, venv(tmp_path / "one"))
    new = {f"lib_new{number}.py": f"{number}".encode() * 100 for number in range(50)}
    files = files_of(venv(tmp_path / "two", **new))
    _, sent = keep(store, SHELF, replace(HEAD, id="2" * 32), files)
    assert sent == sum(len(data) for data in new.values())


def test_what_is_not_what_the_list_says_is_refused(tmp_path: Path, store: FolderStore) -> None:
    head = kept(store, venv(tmp_path / "one"))
    files = read_list(store, SHELF, head)
    for pack in files.packs:
        key = layout.environment_pack(SHELF, pack)
        store.put(key, store.get(key)[::-1])
    (tmp_path / "a" / "two").mkdir(parents=True)
    with pytest.raises(Corrupt):
        bring(store, SHELF, files, tmp_path / "a" / "two")


@pytest.mark.parametrize(
    "entry",
    [
        Entry("../outside", sha256="a" * 64, size_bytes=1),
        Entry("lib/link", EntryKind.LINK, target="../../outside"),
        Entry("lib/link", EntryKind.LINK, target="/etc/passwd"),
    ],
)
def test_a_list_that_leaves_its_folder_is_not_read(entry: Entry, tmp_path: Path, store: FolderStore) -> None:
    head = kept(store, venv(tmp_path / "one"))
    files = read_list(store, SHELF, head)
    data = dump(replace(files, entries=(entry, *files.entries[1:])))
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(layout.environment_list(SHELF, sha256), data)
    with pytest.raises(Malformed):
        read_list(store, SHELF, replace(head, listed=sha256))


@pytest.mark.parametrize(
    "links",
    [
        (Entry("lib/up", EntryKind.LINK, target=".."), Entry("lib/up/a.py", sha256="a" * 64, size_bytes=1)),
        (Entry("lib/b.py", sha256="a" * 64, size_bytes=1), Entry("lib/b.py", sha256="b" * 64, size_bytes=1)),
    ],
)
def test_a_list_with_files_behind_a_link_or_one_path_twice_is_not_read(
    links: tuple[Entry, Entry], tmp_path: Path, store: FolderStore
) -> None:
    head = kept(store, venv(tmp_path / "one"))
    files = read_list(store, SHELF, head)
    data = dump(replace(files, entries=(*links, *files.entries[2:])))
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(layout.environment_list(SHELF, sha256), data)
    with pytest.raises(Malformed):
        read_list(store, SHELF, replace(head, listed=sha256))


@pytest.mark.parametrize("name", ["pydocstyle", "pydoctor", "activate-global-python-argcomplete", "python-argcomplete"])
def test_a_program_whose_name_begins_like_one_of_the_venvs_own_is_shared(name: str, tmp_path: Path) -> None:
    place = venv(tmp_path / "one")
    (place / "bin" / name).write_text("#!/bin/sh\n")
    assert f"bin/{name}" in [one.entry.path for one in files_of(place)]


def test_nothing_that_uv_makes_by_itself_is_shared(tmp_path: Path) -> None:
    subprocess.run([find_uv_bin(), "venv", "--quiet", str(tmp_path / "one")], check=True)
    assert [one.entry.path for one in files_of(tmp_path / "one") if not one.entry.path.startswith("lib/")] == []


def test_a_venv_that_is_removed_meanwhile_is_no_source_of_links(
    tmp_path: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = kept(store, venv(tmp_path / "one"))
    gone = tmp_path / "gone" / LISTED
    here = tmp_path.glob(f"*/{LISTED}")
    monkeypatch.setattr(Path, "glob", lambda *_: [gone, *here])
    (tmp_path / "two").mkdir()
    assert bring(store, SHELF, read_list(store, SHELF, head), tmp_path / "two").linked_files == 4


def test_a_program_that_names_its_own_folder_is_not_shared(tmp_path: Path) -> None:
    place = venv(tmp_path / "one")
    (place / "bin/tool").write_text(f"#!{place}/bin/python\n")
    with pytest.raises(NotRelocatable):
        files_of(place)


def test_a_node_tells_what_it_is_without_starting_a_program(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia/gpus/0").mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: EPYC  7B13\n")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"
    (tmp_path / "driver/nvidia/version").write_text(version)
    (tmp_path / "driver/nvidia/gpus/0/information").write_text("Model: \t\t Tesla T4\n")
    found = system_of(tmp_path)
    assert (found["cpu"], found["driver"], found["gpus"]) == ("EPYC 7B13", "535.104.05", "Tesla T4")
    assert found["libc"].startswith("glibc ")
