"""Locks, with an index that is a folder of wheels: nothing is downloaded."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from stoker.client.settings import ClientSettings, from_environment
from stoker.client.software import locking
from stoker.errors import JobInvalid
from stoker.model.job.job import Environment, Job


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """With a package in two versions, and one for another system alone."""
    place = tmp_path / "index"
    place.mkdir()
    for name, version, system in (("one", "1.0", "any"), ("one", "2.0", "any"), ("far", "1.0", "win_amd64")):
        (place / name).mkdir(exist_ok=True)
        with zipfile.ZipFile(place / name / f"{name}-{version}-py3-none-{system}.whl", "w") as wheel:
            info = f"{name}-{version}.dist-info"
            wheel.writestr(f"{name}.py", f"VERSION = '{version}'\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-{system}\n")
            wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    listed(place)
    return place


def listed(place: Path) -> None:
    for folder in place.iterdir():
        files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.whl")}
        links = [f'<a href="{name}#sha256={digest}">{name}</a>' for name, digest in files.items()]
        (folder / "index.html").write_text("\n".join(links))


@pytest.fixture
def settings(tmp_path: Path, index: Path) -> ClientSettings:
    offline = {"UV_DEFAULT_INDEX": index.as_uri(), "UV_CACHE_DIR": str(tmp_path / "cache")}
    return from_environment({"STOKER_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", **offline})


def made(root: Path, settings: ClientSettings, text: str, **more: bool) -> locking.Lock:
    (root / "requirements.txt").write_text(text)
    job = Job(name="x", run="true", environment=Environment(requirements="requirements.txt", python="3.11"))
    return locking.lock(job, root, settings, elsewhere=more.pop("elsewhere", False), **more)


def test_a_lock_has_exact_versions_and_says_what_it_is_for(tmp_path: Path, settings: ClientSettings) -> None:
    found = made(tmp_path, settings, "one\n")
    assert found.text.startswith(f"# python 3.11 on {locking.here()}\n")
    assert "one==2.0" in found.text
    assert found.packages == 1
    assert found.id == hashlib.sha256(found.text.encode()).hexdigest()


def test_a_lock_is_made_once_and_again_when_asked(tmp_path: Path, settings: ClientSettings, index: Path) -> None:
    first = made(tmp_path, settings, "one\n")
    (index / "one" / "one-2.0-py3-none-any.whl").unlink()
    listed(index)
    assert made(tmp_path, settings, "one\n") == first
    fresh = settings.with_variable("UV_CACHE_DIR", str(tmp_path / "fresh"))
    assert "one==1.0" in made(tmp_path, fresh, "one\n", upgrade=True).text
    assert "one==1.0" in made(tmp_path, settings, "one<2\n").text


@pytest.mark.parametrize("line", ["none-such", "one==9.9", "far"])
def test_what_cannot_be_installed_is_refused_with_the_resolvers_reason(
    tmp_path: Path, settings: ClientSettings, line: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        made(tmp_path, settings, f"{line}\n")
    assert line.partition("==")[0] in refused.value.problems[0].expected


def test_a_hash_that_differs_is_refused(tmp_path: Path, settings: ClientSettings) -> None:
    with pytest.raises(JobInvalid) as refused:
        made(tmp_path, settings, f"one==2.0 --hash=sha256:{64 * '0'}\n")
    assert "hashes" in refused.value.problems[0].expected


def test_a_file_that_refers_to_the_code_of_the_run_has_no_lock(tmp_path: Path, settings: ClientSettings) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    assert made(tmp_path, settings, "./mine\n").text == ""


def test_packages_of_conda_need_a_tool_of_conda_here(tmp_path: Path, settings: ClientSettings) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [pytorch]")
    job = Job(name="x", run="true", environment=Environment(requirements="environment.yml"))
    with pytest.raises(JobInvalid) as refused:
        locking.lock(job, tmp_path, settings, elsewhere=False)
    assert "micromamba" in refused.value.problems[0].expected
    assert locking.lock(job, tmp_path, settings, elsewhere=True).text == ""
