from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from stoker.client.software.packages import PYTHON, packages_of


def test_the_packages_of_this_python_are_found_without_importing_any() -> None:
    found = packages_of(sys.executable)
    assert found["pytest"] == version("pytest")
    assert found[PYTHON] == ".".join(map(str, sys.version_info[:3]))


def test_a_virtual_environment_is_read_from_its_folders(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("torch-2.4.0+cpu.dist-info", "My_Pkg-1.0.dist-info", "old-0.3-py3.12.egg-info", "numpy"):
        (place / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    assert packages_of(str(tmp_path / "bin" / "python")) == {
        "python": "3.12.4",
        "my-pkg": "1.0",
        "old": "0.3",
        "torch": "2.4.0+cpu",
    }


def test_an_interpreter_that_is_not_there_has_no_packages(tmp_path: Path) -> None:
    assert packages_of(str(tmp_path / "bin" / "python")) == {}
