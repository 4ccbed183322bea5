"""What an environment costs: a venv of torch from a store, beside installing it; a warm run; a lock, beside uv's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.commands import Command, on_pipe, workplace
from benchmarks.measure import Goal, Plan, Result, over
from benchmarks.subject import REPOSITORY, VENV, Stoker, installed
from stoker.agent.environment.packing import files_of, keep, read_list
from stoker.agent.environment.unpacking import bring, note_files
from stoker.client.settings import from_environment
from stoker.client.software import locking
from stoker.client.software.wheels import tool
from stoker.model.environment import BuiltEnvironment, tool_settings
from stoker.model.job.job import Environment, Job
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.kinds import grant
from stoker.stores.opening import open_access, open_store
from stoker.testing.services import run_azurite

TORCH = "torch==2.13.0\nnumpy>=2\n"
SIXTY = """
aiohttp alembic attrs babel beautifulsoup4 black boto3 cachetools celery click cryptography datasets django
dnspython fastapi filelock flask fsspec google-auth grpcio gunicorn h5py httpx hydra-core jinja2 joblib jsonschema
kombu lxml markdown matplotlib networkx nltk numpy pandas pillow pluggy protobuf psutil pyarrow pydantic pygments
pytest pyyaml redis requests rich scikit-learn scipy seaborn sqlalchemy starlette sympy tabulate tqdm typer uvicorn
werkzeug xgboost polars
"""
SHELF = layout.environments("benchmark")
LONGEST_S = 600.0


def run(plan: Plan) -> Result:
    result = Result("environment", versions={"stoker": installed(), "uv": _said(_uv(), "--version").split()[1]})
    with workplace() as place:
        _venvs(result, plan, place)
    with workplace() as place:
        _locks(result, plan, place)
    with workplace() as place:
        _warm_runs(result, plan, place)
    return result


def _uv() -> str:
    return str(tool(os.environ))


def _said(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LONGEST_S).stdout


def _venvs(result: Result, plan: Plan, place: Path) -> None:
    """On a fresh node: nothing is linked. The store is an Azurite on this computer, read as nodes read it."""
    with run_azurite(REPOSITORY / ".services", within=place) as azurite:
        url, credential = azurite.new_container(), azurite.account_key
        open_store(url, credential).prepare(SHELF)
        access = grant(url, credential, reads=[], writes=[SHELF], for_s=7200)
        _torch(result, plan, place, open_access(access))


def _torch(result: Result, plan: Plan, place: Path, store: Store) -> None:
    environ = tool_settings(os.environ)
    listed = place / "requirements.txt"
    listed.write_text(TORCH if not plan.quick else "numpy>=2\n")
    first = place / "first" / "venv"
    _install(first, listed, environ)
    files = files_of(first)
    head = BuiltEnvironment("1" * 32, "benchmark", "requirements.txt", "3", "linux", datetime.now(UTC))
    head, _ = keep(store, SHELF, head, files)
    amount = f"{head.files:,} files, {head.size_bytes / 1e6:,.0f} MB"
    result.notes.append(f"venv: {amount}; the store is Azurite on the same computer, read with the token of a node")

    def restore(to: Path) -> None:
        _make(to, environ)
        bring(store, SHELF, read_list(store, SHELF, head), to)

    def copy(to: Path) -> None:
        to.mkdir(parents=True)
        for one in store.list(layout.environment_packs(SHELF).rstrip("/")):
            with (to / one.key.rpartition("/")[2]).open("wb") as file:
                for piece in store.stream(one.key, 0, one.size_bytes):
                    file.write(piece)

    def pip(to: Path) -> None:
        subprocess.run([str(VENV / "bin" / "python"), "-m", "venv", str(to)], check=True, timeout=LONGEST_S)
        argv = [str(to / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(listed)]
        subprocess.run(argv, check=True, env=environ, timeout=LONGEST_S)

    names = ("from the store", "the store's own download", "uv pip install, warm cache", "pip install, warm cache")
    works = (restore, copy, lambda to: _install(to, listed, environ), pip)
    samples = plan.interleave({name: _timed(work, place) for name, work in zip(names, works, strict=True)})
    for name in names:
        result.add(f"venv of torch: {name}", "s", samples[name])
    rate = [raw / took for took, raw in zip(samples[names[0]], samples[names[1]], strict=True)]
    result.add("venv of torch: rate over the store's own", "x", rate, Goal(at_least=0.7))
    faster = [slow / took for took, slow in zip(samples[names[0]], samples[names[3]], strict=True)]
    result.add("venv of torch: times faster than pip", "x", faster, Goal(at_least=3.0))
    _changed(result, store, place, head)


def _changed(result: Result, store: Store, place: Path, head: BuiltEnvironment) -> None:
    """Fifty files of a thousand bytes each, on a node that has the venv of before."""
    before, after, new = place / "node" / "before", place / "node" / "after", place / "first" / "venv"
    for venv in (before, after):
        venv.mkdir(parents=True)
    bring(store, SHELF, read_list(store, SHELF, head), before)
    note_files(before, [one.entry for one in files_of(before)])
    for file in sorted(new.glob("lib/**/site-packages/numpy/**/*.py"))[:50]:
        file.unlink()  # it may be a link to the cache of uv
        file.write_bytes(os.urandom(1000))
    later, sent = keep(store, SHELF, replace(head, id="2" * 32), files_of(new))
    brought = bring(store, SHELF, read_list(store, SHELF, later), after)
    result.add("venv of torch, fifty files changed: uploaded", "MB", [sent / 1e6], Goal(at_most=0.1))
    downloaded = brought.downloaded_bytes / 1e6
    result.add("venv of torch, fifty files changed: downloaded", "MB", [downloaded], Goal(at_most=0.1))


def _timed(work: Callable[[Path], None], place: Path) -> Callable[[], float]:
    def once() -> float:
        to = place / "fresh" / "venv"
        shutil.rmtree(to.parent, ignore_errors=True)
        start = time.perf_counter()
        work(to)
        return time.perf_counter() - start

    return once


def _make(venv: Path, environ: Mapping[str, str]) -> None:
    argv = [
        _uv(),
        "venv",
        "--quiet",
        "--no-project",
        "--relocatable",
        "--python",
        str(VENV / "bin" / "python"),
        str(venv),
    ]
    subprocess.run(argv, check=True, env=environ, timeout=LONGEST_S)


def _install(venv: Path, listed: Path, environ: Mapping[str, str]) -> None:
    _make(venv, environ)
    argv = [_uv(), "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "-r", str(listed)]
    subprocess.run(argv, check=True, env=environ, timeout=LONGEST_S)


def _locks(result: Result, plan: Plan, place: Path) -> None:
    """Both ask the index again, with what uv has cached of it."""
    listed = place / "requirements.txt"
    names = SIXTY.split()[: plan.size(60, 10)]
    listed.write_text("\n".join(names))
    settings = from_environment({**os.environ, "STOKER_HOME": str(place / "home")})
    job = Job(name="sixty", run="true", environment=Environment(requirements=listed.name, python="3.11"))
    compile_ = [_uv(), "pip", "compile", "--quiet", "--generate-hashes", "--python-version", "3.11", str(listed)]

    def lock() -> float:
        start = time.perf_counter()
        found = locking.lock(job, place, settings, elsewhere=False, upgrade=True)
        assert found.packages >= len(names), found.notes
        return time.perf_counter() - start

    def by_uv() -> float:
        start = time.perf_counter()
        subprocess.run(compile_, check=True, env=tool_settings(os.environ), capture_output=True, timeout=LONGEST_S)
        return time.perf_counter() - start

    samples = plan.interleave({"lock": lock, "uv": by_uv})
    result.add("lock of 60 packages", "s", samples["lock"])
    result.add("lock of 60 packages: uv pip compile", "s", samples["uv"])
    result.add("lock of 60 packages: over uv pip compile", "s", over(samples["lock"], samples["uv"]), Goal(at_most=0.1))
    start = time.perf_counter()
    locking.lock(job, place, settings, elsewhere=False)
    result.add("lock of 60 packages, unchanged", "s", [time.perf_counter() - start])


def _warm_runs(result: Result, plan: Plan, place: Path) -> None:
    """The whole command, with an environment that an earlier run has built."""
    with Stoker(place / "stoker") as stoker:
        contestants = {}
        for name, line in (("without", ""), ("with", "environment: requirements.txt\n")):
            folder = place / name
            folder.mkdir()
            (folder / "requirements.txt").write_text("six==1.16.0\nidna==3.7\n")
            (folder / "stoker.yaml").write_text(f"name: {name}\nrun: python -c 1\n{line}")
            command = stoker.command(name, "run", folder=folder, before=stoker.start)
            contestants[name] = _command(command)
        samples = plan.interleave(contestants)
    result.add("run without environment", "s", samples["without"])
    result.add("run with a built environment", "s", samples["with"])
    more = over(samples["with"], samples["without"])
    result.add("run with a built environment: over one without", "s", more, Goal(at_most=0.15))


def _command(command: Command) -> Callable[[], float]:
    return lambda: on_pipe(command, limit_s=LONGEST_S).total_s
