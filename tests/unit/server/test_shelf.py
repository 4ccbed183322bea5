"""The code of runs on its way into a store: files nearby, one object with all of them in a store that is far."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from stoker.errors import Corrupt, Missing
from stoker.model import wire
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.server.codeshelf import CodeShelf
from stoker.stores.objects.bucket import SEGMENT_BYTES
from stoker.stores.trees.blobstream import GLANCE_BYTES, SMALL_BYTES, Bundle, Item, blob_stream
from stoker.stores.trees.unpack import unpack
from stoker.testing.fakes import MemoryStore

FILES = {"a.py": b"print(1)", "b/c.py": b"print(1)", "b/d.py": b"", "big.bin": bytes(SMALL_BYTES + 1), "e.sh": b"ls"}


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__("http://127.0.0.1/far")
        self.reads = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self.reads += 1
        return super().get(key, start, size)


def item(content: bytes) -> Item:
    return hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content)


def snapshot(files: dict[str, bytes]) -> Snapshot:
    return Snapshot(
        tuple(Entry(path, EntryKind.FILE, hashlib.sha256(data).hexdigest(), len(data)) for path, data in files.items())
    )


def submit(shelf: CodeShelf, files: dict[str, bytes]) -> Snapshot:
    """What a client does."""
    code = snapshot(files)
    missing = set(shelf.missing(code))
    wanted = {one[0]: one for one in map(item, files.values()) if one[0] in missing}
    shelf.take(io.BytesIO(b"".join(blob_stream(wanted.values()))))
    assert shelf.missing(code) == []
    shelf.keep(code)
    return code


@pytest.fixture
def near() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def far() -> Counting:
    return Counting()


def test_code_is_one_object_in_a_far_store_and_comes_out_of_it_as_it_was(
    near: MemoryStore, far: Counting, tmp_path: Path
) -> None:
    code = submit(CodeShelf(far, CodeShelf(near)), FILES)
    assert [one.key for one in far.list("")] == [layout.code(code.id)]
    far.reads = 0
    bundle = Bundle(far, code.id)
    unpack(bundle, bundle.snapshot, tmp_path / "work")
    assert {path: (tmp_path / "work" / path).read_bytes() for path in FILES} == FILES
    assert far.reads == 3, "one for everything small, two pieces of what is large"


def test_a_store_nearby_has_every_file_once(near: MemoryStore) -> None:
    code = submit(CodeShelf(near), FILES)
    assert {one.key for one in near.list("")} == {
        layout.snapshot(code.id),
        *(layout.blob(hashlib.sha256(data).hexdigest()) for data in FILES.values()),
    }


def test_no_bundle_has_the_size_behind_which_a_store_looks_for_more(near: MemoryStore, far: Counting) -> None:
    empty = len(Bundle(far, submit(CodeShelf(far, CodeShelf(near)), {"x": b""}).id)._window)
    code = submit(CodeShelf(far, CodeShelf(near)), {"x": bytes(SEGMENT_BYTES - empty - len("1048000") + 1)})
    size = len(far.get(layout.code(code.id)))
    assert size == SEGMENT_BYTES + 1


@pytest.mark.parametrize("place", ["near", "far"])
def test_a_snapshot_with_other_files_than_its_id_says_is_refused(near: MemoryStore, far: Counting, place: str) -> None:
    shelf = CodeShelf(far, CodeShelf(near)) if place == "far" else CodeShelf(near)
    code, other = submit(shelf, {"a.py": b"mine"}), submit(shelf, {"a.py": b"injected"})
    if place == "far":
        far.put(layout.code(code.id), far.get(layout.code(other.id)))
    else:
        near.put(layout.snapshot(code.id), wire.dump(other))
    with pytest.raises(Corrupt):
        shelf.has(code.id)
    shelf.keep(code)
    assert shelf.has(code.id), "whoever submits it again puts it right"


def test_contents_with_another_hash_are_not_unpacked(near: MemoryStore, far: Counting, tmp_path: Path) -> None:
    code = submit(CodeShelf(far, CodeShelf(near)), {"a.py": b"print(1)"})
    data = far.get(layout.code(code.id))
    far.put(layout.code(code.id), data.replace(b"print(1)", b"print(2)"))
    with pytest.raises(Corrupt, match=r"a\.py"):
        unpack(Bundle(far, code.id), code, tmp_path / "work")
    with pytest.raises(Corrupt):
        CodeShelf(far, CodeShelf(MemoryStore())).stock(code.id)


def test_code_that_was_changed_nearby_goes_nowhere(near: MemoryStore, far: Counting) -> None:
    code = submit(CodeShelf(near), {"a.py": b"print(1)"})
    near.put(layout.blob(hashlib.sha256(b"print(1)").hexdigest()), b"print(2)")
    with pytest.raises(Corrupt, match=r"a\.py"):
        CodeShelf(far, CodeShelf(near)).keep(code)
    with pytest.raises(Missing):
        far.get(layout.code(code.id))


@pytest.mark.parametrize("data", [b"", b"{}", b"stoker-code-1\n", b"stoker-code-1\n" + b"\xff" * 8, b"x" * 100])
def test_what_is_no_bundle_is_told_so(far: Counting, data: bytes) -> None:
    far.put(layout.code("0" * 64), data)
    with pytest.raises(Corrupt):
        Bundle(far, "0" * 64, GLANCE_BYTES)


def test_code_comes_back_from_a_far_store_after_this_computer_has_lost_it(near: MemoryStore, far: Counting) -> None:
    code = submit(CodeShelf(far, CodeShelf(near)), FILES)
    fresh, other = MemoryStore(), MemoryStore("http://127.0.0.1/other")
    CodeShelf(other, CodeShelf(fresh)).bring(code.id, CodeShelf(far, CodeShelf(fresh)))
    assert CodeShelf(fresh).has(code.id)
    assert other.get(layout.code(code.id)) == far.get(layout.code(code.id))
