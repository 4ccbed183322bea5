from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from softwaresite import Site
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.wheels import NotSent, wheel_of
from stoker.errors import SnapshotRefused

FROM_FOLDER = {"url": "file:///somewhere", "dir_info": {}}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "venv")


def only(site: Site, name: str) -> Distribution:
    return Installed.of(site.python).by_name[name]


def test_what_is_installed_becomes_a_wheel_with_the_same_files(site: Site, tmp_path: Path) -> None:
    files = {"my_pkg/__init__.py": "X = 1\n", "my_pkg/data.json": "{}", "my_pkg/__pycache__/a.pyc": ""}
    site.install("my-pkg", "1.2", files, origin=FROM_FOLDER, commands=["mine"])
    wheel = wheel_of(only(site, "my-pkg"), tmp_path / "kept", {})
    assert wheel.name == "my_pkg-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        info = "my_pkg-1.2.dist-info"
        expected = {"my_pkg/__init__.py", "my_pkg/data.json"}
        expected |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
        assert set(opened.namelist()) == expected
        assert opened.read("my_pkg/__init__.py") == b"X = 1\n"
        record = opened.read(f"{info}/RECORD").decode()
    assert re.search(r"^my_pkg/__init__.py,sha256=[\w-]{43},6$", record, re.M)
    code = "import my_pkg, importlib.metadata as m; print(my_pkg.X, m.version('my-pkg'))"
    env = {"PYTHONPATH": str(wheel)}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert told.stdout == "1 1.2\n", told.stderr


def test_what_conda_installed_comes_from_an_index_although_it_names_the_folder_it_was_built_in(site: Site) -> None:
    built = {"url": "file:///home/conda/feedstock_root/build_artifacts/numpy_1707225359967/work", "dir_info": {}}
    for name, tool in (("numpy", "conda\n"), ("mine", "pip\n")):
        site.install(name, origin=built)
        (site.folder / f"{name}-1.0.dist-info" / "INSTALLER").write_text(tool)
    assert only(site, "numpy").origin == {} and only(site, "numpy").project is None
    assert only(site, "mine").origin == built


def test_the_same_files_give_the_same_bytes_once(site: Site, tmp_path: Path) -> None:
    site.install("a", origin=FROM_FOLDER)
    first = wheel_of(only(site, "a"), tmp_path / "one", {})
    again = wheel_of(only(site, "a"), tmp_path / "one", {})
    other = wheel_of(only(site, "a"), tmp_path / "two", {})
    assert first == again
    assert first.read_bytes() == other.read_bytes()


def test_a_file_that_is_gone_is_named(site: Site, tmp_path: Path) -> None:
    site.install("a", files={"a.py": "", "b.py": ""}, origin=FROM_FOLDER)
    (site.folder / "b.py").unlink()
    with pytest.raises(NotSent, match=r"`a`.* b\.py"):
        wheel_of(only(site, "a"), tmp_path / "kept", {})


def test_what_was_compiled_for_another_system_is_refused(site: Site, tmp_path: Path) -> None:
    site.install("fast", files={"fast.cpython-311-darwin.so": ""}, origin=FROM_FOLDER)
    info = site.folder / "fast-1.0.dist-info"
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp311-cp311-macosx_11_0_arm64\n")
    with pytest.raises(NotSent, match="macosx_11_0_arm64"):
        wheel_of(only(site, "fast"), tmp_path / "kept", {})


def test_a_secret_in_somebodys_own_package_is_not_sent(site: Site, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    site.install("own", files={"own.py": f'TOKEN = "{token}"\n'}, origin=FROM_FOLDER)
    with pytest.raises(SnapshotRefused, match=r"own\.py:1") as refused:
        wheel_of(only(site, "own"), tmp_path / "kept", {})
    assert token not in str(refused.value)
    assert not list((tmp_path / "kept").rglob("*.whl"))


def test_a_project_that_cannot_be_built_says_why(site: Site, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[build-system\n")
    origin: dict[str, Any] = {"url": project.as_uri(), "dir_info": {"editable": True}}
    site.install("mine", files={}, origin=origin)
    place = tmp_path / "kept"
    place.mkdir()
    with pytest.raises(NotSent, match=r"`mine`.*/project.*unclosed table"):
        wheel_of(only(site, "mine"), place, {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert [path.name for path in project.iterdir()] == ["pyproject.toml"], "the folder stays as it was"
