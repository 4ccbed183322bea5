"""Bringing data to a store and back: beside the usual clients of Azure Blob, and beside `cp` and `sha256sum`."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.blobclients import BlobClient, Trip, clients, measured
from benchmarks.commands import workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import REPOSITORY, VENV, Stoker, installed
from stoker.stores.azure.rights import WRITE, service_sas
from stoker.stores.kinds import locate
from stoker.testing.services import KEY, Azurite, run_azurite

STOKER, NODE, RAW = "stoker", "stoker on a node", "raw obstore"
CP, CP_HASH = "cp -r", "cp -r and sha256sum"
MOST_ROUNDS = 3  # a round moves several GB there and back

# What `stoker data put` does with a store that is a folder, without the server.
FOLDER = """\
import sys
from pathlib import Path
from stoker.client.data.adopting import Adopting
from stoker.client.data.folder import look
from stoker.client.progress import TransferProgress
from stoker.client.source.statindex import StatIndex
from stoker.model.dataset import Manifest
from stoker.stores.folder.store import FolderStore

folder, root = map(Path, sys.argv[1:])
adopting = Adopting(FolderStore(root / "data"), StatIndex(None), lambda sha256: False, TransferProgress())
adopting.run(look(folder))
FolderStore(root).put("manifest.json", Manifest(adopting.files).to_bytes())
"""


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    folder: Path
    files: int
    size_bytes: int

    def rate(self, trip: Trip) -> float:
        """In MB/s where the files are large, in files/s where they are many."""
        return (self.size_bytes / 1e6 if self.large else self.files) / trip.wall_s

    @property
    def large(self) -> bool:
        return self.size_bytes / self.files > 1_000_000

    @property
    def unit(self) -> str:
        return "MB/s" if self.large else "files/s"


@dataclass(slots=True)
class Trips:
    """One per round, by data set and way."""

    of: dict[tuple[str, str], list[Trip]] = field(default_factory=dict)

    def add(self, data: DataSet, way: str, trip: Trip) -> None:
        self.of.setdefault((data.name, way), []).append(trip)


def run(plan: Plan) -> Result:
    result = Result("data", versions={"stoker": installed()})
    with workplace() as place:
        sets = [
            _make(place / "large", 8, plan.size(128_000_000, 8_000_000)),
            _make(place / "small", plan.size(5_000, 500), 20_000),
        ]
        found = clients(place, alone=plan.alone)
        for client in found:
            if version := client.install():
                result.versions[client.name] = version
        rounds = Plan(min(plan.rounds, MOST_ROUNDS), plan.quick, plan.alone, plan.patience_s)
        _blob(result, rounds, place, sets, found)
        _folder(result, rounds, place, sets)
        _product(result, rounds, place, plan.size(100_000, 2_000))
    return result


def _make(folder: Path, files: int, size: int) -> DataSet:
    for number in range(files):
        part = folder / f"part-{number % 20}"
        part.mkdir(parents=True, exist_ok=True)
        (part / f"file {number:05d}.bin").write_bytes(os.urandom(size))
    return DataSet(f"{files:,} x {size // 1000:,} KB", folder, files, files * size)


def _blob(result: Result, plan: Plan, place: Path, sets: list[DataSet], found: list[BlobClient]) -> None:
    trips = {client.name: Trips() for client in found}
    contestants = {one.name: partial(_there_and_back, one, place, sets, trips[one.name]) for one in found}
    plan.interleave(contestants, warm_up=0)
    for data, way in itertools.product(sets, ("up", "down")):
        times = {name: each.of[data.name, way] for name, each in trips.items()}
        for name, each in times.items():
            what = f"{name}: {data.name} {way}"
            result.add(what, data.unit, [data.rate(trip) for trip in each])
            result.add(f"{what}, processor", "s", [trip.processor_s for trip in each])
        _compare(result, f"{data.name} {way}", times)
    memory = [trip.peak_memory_mb for each in trips[STOKER].of.values() for trip in each]
    result.add(f"{STOKER}: peak memory of a transfer", "MB", memory, Goal(at_most=256))


def _compare(result: Result, what: str, times: dict[str, list[Trip]]) -> None:
    """Within each round, so that a noisy minute hits both sides."""
    ours, raw = times[STOKER], times[RAW]
    shares = [bare.wall_s / own.wall_s for own, bare in zip(ours, raw, strict=True)]
    result.add(f"{STOKER} / {RAW}: {what}", "of its rate", shares, Goal(at_least=0.8))
    for name in times.keys() - {STOKER, NODE, RAW}:
        rates = [peer.wall_s / own.wall_s for own, peer in zip(ours, times[name], strict=True)]
        costs = [own.processor_s / peer.processor_s for own, peer in zip(ours, times[name], strict=True)]
        result.add(f"{STOKER} / {name}: {what}", "of its rate", rates, Goal(at_least=1))
        result.add(f"{STOKER} / {name}: {what}, processor", "of its time", costs, Goal(at_most=1))


def _there_and_back(client: BlobClient, place: Path, sets: list[DataSet], trips: Trips) -> None:
    """With an Azurite of its own, since one that is full is slower, and never gives room back."""
    home = place / "home"
    with run_azurite(REPOSITORY / ".services", within=place) as azurite:
        for data in sets:
            container, sas = _container(azurite)
            back = place / "back"
            trips.add(data, "up", client.trip("up", data.folder, azurite.endpoint, container, sas, home))
            back.mkdir()
            trips.add(data, "down", client.trip("down", back, azurite.endpoint, container, sas, home))
            _check_same(data, back)
            shutil.rmtree(back)


def _container(azurite: Azurite) -> tuple[str, str]:
    url = azurite.new_container()
    return url.rpartition("/")[2], service_sas(locate(url), KEY, WRITE, 3600)


def _check_same(data: DataSet, back: Path) -> None:
    """By size alone: hashing everything would take longer than bringing it."""
    came = {one.name: one.stat().st_size for one in back.rglob("*") if one.is_file()}
    assert came == {one.name: one.stat().st_size for one in data.folder.rglob("*") if one.is_file()}, back


def _folder(result: Result, plan: Plan, place: Path, sets: list[DataSet]) -> None:
    """In memory, where only the processor counts. The large files from a disk to a disk as well, read for the first
    time: what is larger than memory is never in it."""
    (place / "folder.py").write_text(FOLDER, encoding="utf-8")
    for data in sets:
        against = [(CP_HASH, Goal(at_least=1.0)), *([(CP, None)] if data.large else [])]
        _beside_cp(result, plan, place, data, "folder in memory", against, place / "target")
    large = next(data for data in sets if data.large)
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        disk = Path(name)
        shutil.copytree(large.folder, disk / "large")
        there = replace(large, folder=disk / "large")
        against = [(CP_HASH, Goal(at_least=1.0)), (CP, Goal(at_least=0.8))]
        rounds = replace(plan, rounds=2 * plan.rounds + 1)  # disks are moody
        _beside_cp(result, rounds, place, there, "folder on a disk", against, disk / "target")


def _beside_cp(
    result: Result,
    plan: Plan,
    place: Path,
    data: DataSet,
    where: str,
    against: list[tuple[str, Goal | None]],
    target: Path,
) -> None:
    python, script = str(VENV / "bin" / "python"), str(place / "folder.py")
    argvs = {
        CP: ["cp", "-r", str(data.folder), str(target)],
        CP_HASH: ["sh", "-c", f"cp -r {data.folder} {target} && find {target} -type f -exec sha256sum {{}} +"],
        f"{STOKER} up": [python, script, str(data.folder), str(target)],
    }
    times = plan.interleave({name: _into(argv, place, data.folder, target) for name, argv in argvs.items()})
    for name, each in times.items():
        result.add(f"{where}, {name}: {data.name}", data.unit, [data.rate(trip) for trip in each])
    ours = times[f"{STOKER} up"]
    for name, goal in against:
        shares = [other.wall_s / own.wall_s for own, other in zip(ours, times[name], strict=True)]
        result.add(f"{where}, {STOKER} / {name}: {data.name}", "of its rate", shares, goal)


def _into(argv: list[str], place: Path, source: Path, target: Path) -> Callable[[], Trip]:
    def once() -> Trip:
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        for path in (one for one in source.rglob("*") if one.is_file()):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # nothing where the disk is memory
        trip = measured(argv, {}, place / "home")
        shutil.rmtree(target, ignore_errors=True)
        return trip

    return once


def _product(result: Result, plan: Plan, place: Path, files: int) -> None:
    """The command itself: a large number of files, and the same again when nothing has changed."""
    many = place / "many"
    for number in range(files):
        if number % 1000 == 0:
            (many / f"{number // 1000}").mkdir(parents=True)
        (many / f"{number // 1000}" / f"{number}").write_bytes(b"%d" % number)
    tree = place / "small"
    first: list[float] = []
    again: list[float] = []
    for number in range(plan.rounds):
        with Stoker(place / f"stoker-{number}") as stoker:
            stoker.start()
            put = str(VENV / "bin" / "stoker"), "data", "put"
            first.append(measured([*put, str(many), "--name", "many"], stoker.environment, place / "home").wall_s)
            measured([*put, str(tree), "--name", "tree"], stoker.environment, place / "home")
            again.append(measured([*put, str(tree), "--name", "tree"], stoker.environment, place / "home").wall_s)
    result.add(f"stoker data put: {files:,} files", "s", first, Goal(at_most=60))
    count = sum(1 for one in tree.rglob("*") if one.is_file())
    result.add(f"stoker data put: {count:,} unchanged files", "s", again, Goal(at_most=1))
