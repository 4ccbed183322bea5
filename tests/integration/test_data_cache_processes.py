"""The node's cache under real processes: many at once, and killed."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from stoker.agent.data.cache import Cache, Hold, held
from stoker.agent.data.downloading import Download, Tally, WantedContent
from stoker.agent.data.mounts import libc, unmount_below
from stoker.agent.pack import pack
from stoker.errors import StoreFailed


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(cache: Cache, data: bytes) -> None:
    with cache.fetching(sha(data)) as part:
        assert part
        part.write(data)
        cache.commit(sha(data), sha(data))


def test_what_a_dead_node_held_is_let_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.make()
    put(cache, b"data")
    script = f"""
        import os, sys, time
        from pathlib import Path
        from stoker.agent.data.cache import Cache
        from stoker.agent.data.cache import Hold
        cache = Cache(Path({str(cache.root)!r}))
        hold = Hold(cache, "dead")
        hold.take()
        cache.use({sha(b"data")!r}, str(hold.trees / "x"))
        print("held", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        mine = Hold(cache, "mine")
        mine.take()
        mine.reserve({}, 1)
        assert len(held(cache)) == 1
        process.kill()
        process.wait()
    mine.reserve({}, 1)
    assert held(cache) == []
    mine.release()


WORKER = """
import random, sys, hashlib, os
from pathlib import Path
from stoker.agent.data.cache import Cache
from stoker.agent.data.downloading import Download, Tally, WantedContent
from stoker.agent.data.cache import Hold
from stoker.errors import StoreFailed
root, key, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dice = random.Random(seed)
contents = [bytes([number]) * (1000 * number + 1) for number in range(40)]
by_key = {hashlib.sha256(data).hexdigest(): data for data in contents}
while True:
    cache, hold = Cache(root), Hold(Cache(root), key)
    hold.take()
    mine = dice.sample(contents, 8)
    names = [hashlib.sha256(data).hexdigest() for data in mine]
    try:
        hold.reserve({name: len(by_key[name]) for name in names}, 1_500_000)
        work = Download(cache, lambda key, at, size: by_key[key][at : at + size], lambda: None, print, Tally())
        work.run([WantedContent(name, len(by_key[name]), name, name, name) for name in names])
        for number, name in enumerate(names):
            cache.use(name, str(hold.trees / str(number)))
        for number, data in enumerate(mine):
            if (hold.trees / str(number)).read_bytes() != data:
                print("WRONG", flush=True)
        print("round", flush=True)
    except (StoreFailed, FileNotFoundError) as error:
        print(f"refused {error}", flush=True)
    hold.release()
"""


def test_processes_that_are_killed_at_random_never_leave_a_wrong_content(tmp_path: Path) -> None:
    root, dice = tmp_path / "cache", random.Random(4)
    Cache(root).make()
    words = (tmp_path / "words").open("w+b")

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, str(root), f"n{number}", str(dice.random())[2:]]
        return subprocess.Popen(command, stdout=words, stderr=words)

    workers = [start(number) for number in range(3)]
    try:
        for _ in range(12):
            time.sleep(dice.uniform(0.1, 0.4))
            number = dice.randrange(3)
            workers[number].send_signal(signal.SIGKILL)
            workers[number].wait()
            workers[number] = start(number)
        deadline = time.monotonic() + 30
        while (tmp_path / "words").read_bytes().count(b"round") < 20:
            assert time.monotonic() < deadline, (tmp_path / "words").read_text()[-2000:]
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        words.close()
    said = (tmp_path / "words").read_text()
    assert "WRONG" not in said
    assert "Traceback" not in said, said[-2000:]
    cache = Cache(root)
    for one in held(cache):
        assert sha(Path(cache.object(one.sha256)).read_bytes()) == one.sha256
    assert sum(one.size_bytes for one in held(cache)) <= 1_500_000


NOBODY = 65534
AS_NOBODY = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stoker.agent.data import source
from stoker.agent.data.cache import Cache
from stoker.agent.data.cache import Hold
from stoker.model.dataset import DataFile
import hashlib
cache = Cache(Path(sys.argv[1]))
hold = Hold(cache, "n1")
hold.take()
name = hashlib.sha256(b"data").hexdigest()
with cache.fetching(name) as part:
    part.write(b"data")
    cache.commit(name, name)
top = hold.trees / "images"
source.plant(top, [DataFile("a/b.txt", 4, name)], lambda file, path: cache.use(name, path))
print(source.protect(top))
for verb in (lambda: open(top / "a/b.txt", "ab"), lambda: os.remove(top / "a/b.txt"), lambda: open(top / "new", "w")):
    try:
        verb()
        print("done")
    except PermissionError:
        print("refused")
os.chmod(top / "a/b.txt", 0o644)
(top / "a/b.txt").write_bytes(b"evil")
print(cache.has(name, 4), cache.repaired == [name])
hold.release()
print(hold.folder.exists())
"""


def test_without_root_permissions_protect_the_cache_and_what_gets_past_them_is_found(tmp_path: Path) -> None:
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(place, NOBODY, NOBODY)
        code = shutil.copy(pack(tmp_path / "agents"), place / "agent.pyz")
        command = [_python(), "-c", AS_NOBODY, str(place / "cache"), str(code)]
        done = subprocess.run(
            command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["permissions", "refused", "refused", "refused", "False", "True", "False"]
    finally:
        shutil.rmtree(place)


def _python() -> str:
    """One that everybody may run."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def test_a_full_disk_is_reported_and_leaves_no_part(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    assert libc().mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=1m") == 0
    try:
        cache = Cache(place)
        cache.make()
        data = random.Random(1).randbytes(3_000_000)
        wanted = WantedContent(sha(data), len(data), "key", "train/big.bin", sha(data))
        work = Download(cache, lambda _, at, size: data[at : at + size], lambda: None, lambda *_: None, Tally())
        with pytest.raises(StoreFailed, match=r"`train/big\.bin`"):
            work.run([wanted])
        assert list(cache.parts.iterdir()) == []
        hold = Hold(cache, "n1")
        hold.take()
        with pytest.raises(StoreFailed, match=r"\b3\.0\b.*\b1\.0\b"):
            hold.reserve({sha(data): len(data)}, None)
        hold.release()
    finally:
        unmount_below(place)
