"""Reading a dataset that is mounted, beside downloading it first: a large file from its beginning to its end, and many
small ones. Both by the agent's own code, against one Azurite."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import CommandFailed, workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import REPOSITORY, installed
from stoker.agent.data.cache import Cache
from stoker.agent.data.downloading import Download, Tally, WantedContent
from stoker.agent.data.mounting import Mount, why_not
from stoker.model.workspace import layout
from stoker.stores.access import Access, Credential, Route
from stoker.stores.kinds import grant
from stoker.stores.opening import open_access, open_store
from stoker.testing.services import Azurite, run_azurite

PIECE_BYTES = 1 << 20
SMALL_BYTES = 20_000
_SHIM = (
    sys.executable,
    "-c",
    "import os, sys; from stoker.agent.data.mounts import main; sys.exit(main(sys.argv[1:], os.environ))",
)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Sample:
    wall_s: float
    ready_s: float = 0.0  # until a script could start
    first_byte_s: float = 0.0  # from then on, until it has a byte of the large file


def run(plan: Plan) -> Result:
    result = Result("mount", versions={"stoker": installed()})
    large, small = plan.size(500_000_000, 50_000_000), plan.size(2_000, 200)
    with workplace() as place, run_azurite(REPOSITORY / ".services", within=place) as azurite:
        access, contents = _filled(azurite, large, small)
        if reason := why_not(access.route(layout.content("bench", "0" * 64)), os.environ["PATH"]):
            raise CommandFailed(f"a store cannot be mounted here: {reason}")
        big, many = contents[:1], contents[1:]
        samples = plan.interleave(
            {
                "large, downloaded": lambda: _download(place, access, big),
                "large, mounted": lambda: _mounted(place, access, big),
                "small, downloaded": lambda: _download(place, access, many),
                "small, mounted": lambda: _mounted(place, access, many),
            }
        )
    _large(result, large, samples["large, downloaded"], samples["large, mounted"])
    _small(result, small, samples["small, downloaded"], samples["small, mounted"])
    return result


def _large(result: Result, size: int, downloads: list[Sample], mounts: list[Sample]) -> None:
    megabytes = size / 1e6
    name = f"one file of {megabytes:,.0f} MB"
    result.add(f"{name}, downloaded and verified", "MB/s", [megabytes / one.wall_s for one in downloads])
    result.add(f"{name}, read through a mount", "MB/s", [megabytes / one.wall_s for one in mounts])
    shares = [down.wall_s / mount.wall_s for down, mount in zip(downloads, mounts, strict=True)]
    result.add(f"{name}, mount / download", "of its rate", shares, Goal(at_least=0.7))
    result.add("first byte of a file in a mount", "s", [one.first_byte_s for one in mounts], Goal(at_most=1.0))
    both = [one.ready_s + one.first_byte_s for one in mounts]
    result.add("first byte, with mounting", "s", both, Goal(at_most=1.0))


def _small(result: Result, files: int, downloads: list[Sample], mounts: list[Sample]) -> None:
    name = f"{files:,} files of {SMALL_BYTES // 1000} kB"
    result.add(f"{name}, downloaded and verified", "files/s", [files / one.wall_s for one in downloads])
    result.add(f"{name}, read through a mount", "files/s", [files / one.wall_s for one in mounts])


def _filled(azurite: Azurite, large: int, small: int) -> tuple[Access, list[WantedContent]]:
    """A container with the contents, the large one first, and what a node is given to read it."""
    url = azurite.new_container()
    credential: Credential = azurite.account_key
    store = open_store(url, credential)
    contents = []
    for size in (large, *[SMALL_BYTES] * small):
        data = os.urandom(size)
        sha256 = hashlib.sha256(data).hexdigest()
        store.put(layout.content("bench", sha256), data)
        contents.append(WantedContent(sha256, size, layout.content("bench", sha256), sha256, sha256))
    return grant(url, credential, reads=[layout.dataset("bench")], writes=[], for_s=7200), contents


def _download(place: Path, access: Access, contents: list[WantedContent]) -> Sample:
    cache = Cache(place / f"cache-{next(_numbers)}")
    cache.make()
    start = time.monotonic()
    Download(cache, open_access(access).get, lambda: None, lambda *_: None, Tally()).run(contents)
    wall_s = time.monotonic() - start
    shutil.rmtree(cache.root)
    return Sample(wall_s, wall_s)


def _mounted(place: Path, access: Access, contents: list[WantedContent]) -> Sample:
    route = access.route(contents[0].key)
    assert route
    begun = time.monotonic()
    with _mount(place / f"mount-{next(_numbers)}", route) as top:
        start = time.monotonic()
        first_byte_s = 0.0
        for one in contents:
            with open(f"{top}/{one.key.removeprefix(route.prefix)}", "rb", buffering=0) as file:  # noqa: PTH123
                file.read(1)
                first_byte_s = first_byte_s or time.monotonic() - start
                while file.read(PIECE_BYTES):
                    pass
        return Sample(time.monotonic() - start, start - begun, first_byte_s)


@contextmanager
def _mount(folder: Path, route: Route) -> Iterator[Path]:
    folder.mkdir()
    mount = Mount(route, folder, "benchmark", os.environ, _SHIM, 4_000_000_000)
    try:
        mount.start()
        yield mount.top
    finally:
        mount.stop()
        shutil.rmtree(folder)
