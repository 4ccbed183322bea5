"""A manifest is the same wherever it is created, and names nothing outside its folder."""

from __future__ import annotations

import hashlib
import json
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadInput, DatasetRefused
from stoker.model import wire
from stoker.model.dataset import DataFile, DatasetVersion, Manifest, Reference, manifest_id, reference

names = st.text(
    st.characters(blacklist_characters="/\\:\0", blacklist_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))
hashes = st.binary(max_size=8).map(lambda data: hashlib.sha256(data).hexdigest())
sizes = st.integers(0, 2**50)
uploaded = st.builds(DataFile, names, sizes, hashes, st.just(""), st.just(""))
in_place = st.builds(DataFile, names, sizes, st.just(""), names.map("raw/{}".format), names)
trees = st.lists(uploaded | in_place, unique_by=lambda file: file.path, max_size=12).map(
    lambda files: [file._replace(path=f"{index % 3}/{file.path}") for index, file in enumerate(files)]
)


calm = settings(deadline=None, max_examples=60)  # a busy computer is no reason to fail


def file(path: str, data: bytes = b"x") -> DataFile:
    return DataFile(path, len(data), hashlib.sha256(data).hexdigest())


@calm
@given(trees)
def test_a_manifest_comes_back_as_it_was_written(files: list[DataFile]) -> None:
    written = Manifest(files)
    read = Manifest.from_bytes(written.to_bytes(), written.id)
    assert read.files == sorted(files)
    assert read.to_bytes() == written.to_bytes()


@calm
@given(trees, st.randoms(use_true_random=False))
def test_the_version_id_does_not_depend_on_the_order_of_the_files(files: list[DataFile], chance: random.Random) -> None:
    shuffled = list(files)
    chance.shuffle(shuffled)
    assert Manifest(shuffled).id == Manifest(files).id


@calm
@given(trees.filter(len), st.data())
def test_the_version_id_changes_with_anything_that_is_in_it(files: list[DataFile], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(files) - 1))
    other = [*files[:at], files[at]._replace(size_bytes=files[at].size_bytes + 1), *files[at + 1 :]]
    assert Manifest(other).id != Manifest(files).id


@calm
@given(
    st.lists(names | st.sampled_from(["..", ".", "", "C:", "\\..\\", "a\0b"]), min_size=1, max_size=5).map("/".join),
    st.sampled_from(["", "/", "../", "C:\\", "\\\\server\\", "x/../../"]),
)
def test_no_path_that_a_manifest_accepts_leaves_its_folder(path: str, before: str) -> None:
    text = json.dumps({"format": 1, "files": [[before + path, 1, "0" * 64]]})
    try:
        (read,) = Manifest.from_bytes(text.encode()).files
    except DatasetRefused:
        return
    parts = read.path.replace("\\", "/").split("/")
    assert ".." not in parts
    assert not read.path.startswith(("/", "\\", "C:"))
    assert all(part not in ("", ".") for part in read.path.split("/"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "C:\\x", "..\\x", "\\\\host\\x", "", "a/", "a//b",
                                  "./a", ".", "a/.", "x\0y", "\ud800"])  # fmt: skip
def test_path_traversal_in_a_manifest_is_refused(path: str) -> None:
    rows = [[path, 1, "0" * 64]]
    with pytest.raises(DatasetRefused):
        Manifest.from_bytes(json.dumps({"format": 1, "files": rows}).encode())


@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a/../../x", "a//b"])
def test_a_key_outside_the_store_is_refused(key: str) -> None:
    with pytest.raises(DatasetRefused):
        Manifest([DataFile("a", 1, "", key, "tag")])


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'{"format":1}', b'{"format":1,"files":7}', b'{"format":1,"files":[7]}',
     b'{"format":1,"files":[["a"]]}', b'{"format":1,"files":[["a","1","x"]]}', b'{"format":1,"files":[["a",1,"x"]]}',
     b'{"format":1,"files":[["a",-1,"%s"]]}' % (b"0" * 64), b'{"format":1,"files":[["a",true,"%s"]]}' % (b"0" * 64),
     b'{"format":1,"files":[[["a"],1,""]]}', b'{"format":1,"files":[["a",1],[2,1]]}', b"[" * 100_000, b"\xff\xfe",
     b'{"format":2,"files":[]}', b'{"format":1,"files":[["a",1,"","k","e","more"]]}'],
)  # fmt: skip
def test_what_is_no_manifest_is_refused_with_a_message(text: bytes) -> None:
    with pytest.raises(DatasetRefused, match=r"manifest"):
        Manifest.from_bytes(text)


def test_a_damaged_manifest_is_noticed_by_its_hash() -> None:
    manifest = Manifest([file("a"), file("b")])
    damaged = manifest.to_bytes().replace(b'"a"', b'"c"')
    with pytest.raises(DatasetRefused, match="is damaged"):
        Manifest.from_bytes(damaged, manifest.id)


def test_a_path_may_not_be_there_twice_nor_be_a_file_and_a_folder() -> None:
    with pytest.raises(DatasetRefused, match="`a`"):
        Manifest([file("a", b"1"), file("a", b"2")])
    with pytest.raises(DatasetRefused, match="`a/b`"):
        Manifest([file("a/b"), file("a/b/c/d")])


def test_uploaded_content_lies_under_its_hash_and_files_in_place_where_they_are() -> None:
    sha256 = file("a").sha256
    assert file("a").stored_in("ants") == f"stoker/data/ants/contents/{sha256[:2]}/{sha256}"
    assert DataFile("a", 1, "", "raw/a", "tag").stored_in("ants") == "raw/a"


def test_a_version_is_pinned_by_name_and_number_and_survives_the_wire() -> None:
    manifest = Manifest([file("a")])
    version = DatasetVersion(
        "ants", 3, manifest.id, "local", 1, 1, datetime(2026, 1, 2, tzinfo=UTC), "ants", "CC0", ("small", "images")
    )
    assert version.ref == "ants@3"
    assert version.manifest == f"stoker/data/ants/{manifest_id(manifest.to_bytes())}.json"
    assert wire.load(DatasetVersion, wire.dump(version)) == version


def test_a_reference_names_the_newest_a_number_or_a_hash() -> None:
    assert reference("ants") == Reference("ants")
    assert reference("ants-2.v_1@12") == Reference("ants-2.v_1", 12)
    assert reference("ants@1f2e3d4") == Reference("ants", id="1f2e3d4")
    assert reference("ants@1234567") == Reference("ants", id="1234567")


@pytest.mark.parametrize("text", ["", "@3", "Ants", "a/b", "..", "ants@", "ants@0", "ants@x", "ants@-1", "ants@1@2",
                                  "ants@12345g", "a" * 81])  # fmt: skip
def test_what_is_no_reference_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        reference(text)
    assert refused.value.hint
