"""Which packages a submission uploads, with the real uv and the real package index."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from softwaresite import Site
from stoker.client.settings import ClientSettings, from_environment
from stoker.client.software.taking import Along, files, take
from stoker.client.software.wheels import resolve
from stoker.client.source.tree import scan
from stoker.errors import JobInvalid
from stoker.model.job.job import Job
from stoker.model.job.sections import is_ours


class User:
    def __init__(self, tmp_path: Path) -> None:
        self.site = Site(tmp_path / "venv")
        self.root = tmp_path / "project"
        self.root.mkdir()
        (self.site.root / "bin" / "python").touch()
        keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
        given = {**keep, "VIRTUAL_ENV": str(self.site.root), "STOKER_HOME": str(tmp_path / "home")}
        self.settings: ClientSettings = from_environment(given)

    def take(self, script: str, **environment: Any) -> Along:
        (self.root / "train.py").write_text(script)
        job = Job.read({"name": "x", "run": "python train.py", "environment": environment})
        return take(job, scan(self.root), self.settings)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_versions_are_public_and_what_the_machine_needs_besides_is_added(user: User) -> None:
    """Like a laptop whose build of a package requires less than the public one."""
    user.site.install("requests", "2.31.0+cpu", requires=["idna"])
    user.site.install("idna", "3.7")
    user.site.install("unused", "1.0")
    taken = user.take("import requests")
    heads = [line.partition(" ;")[0] for line in taken.lines]
    assert {"requests==2.31.0", "idna==3.7"} < set(heads)
    assert {head.partition("==")[0] for head in heads} == {
        "requests",
        "idna",
        "certifi",
        "charset-normalizer",
        "urllib3",
    }
    added = next(line for line in taken.lines if line.startswith("urllib3=="))
    assert added.endswith("; sys_platform == 'linux' and platform_machine == 'x86_64'")
    assert (taken.software.python, taken.software.packages, taken.left_out) == ("3.11", 5, 1)
    assert taken.notes == ()
    assert taken.software.uv["x86_64"].startswith("https://")


def test_a_package_that_no_index_has_is_sent_as_it_is_installed(user: User) -> None:
    user.site.install("stoker-tests-private", "4.2", {"stoker_tests_private.py": "X = 1\n"}, requires=["six"])
    user.site.install("six", "1.16.0", {"six.py": ""})
    taken = user.take("import stoker_tests_private")
    wheel = "stoker_tests_private-4.2-py3-none-any.whl"
    assert taken.lines == ("six==1.16.0", f"stoker-tests-private @ wheels/{wheel}")
    assert taken.notes == ()
    found = files(taken, user.settings.home.software)
    assert sorted(found) == [".stoker/packages.txt", f".stoker/wheels/{wheel}"]
    with zipfile.ZipFile(found[f".stoker/wheels/{wheel}"]) as opened:
        assert opened.read("stoker_tests_private.py") == b"X = 1\n"
    tree = scan(user.root).with_files(found, is_ours)
    again = user.take("import stoker_tests_private")
    second = scan(user.root).with_files(files(again, user.settings.home.software), is_ours)
    assert tree.snapshot.id == second.snapshot.id, "the same packages give the same snapshot"


def test_a_version_that_nobody_can_install_is_reported(user: User) -> None:
    user.site.install("six", "1.16.99", {"six.abi3.so": ""})
    (user.site.folder / "six-1.16.99.dist-info" / "WHEEL").write_text("Tag: cp311-cp311-macosx_11_0_arm64\n")
    taken = user.take("import six")
    assert taken.lines == ("six==1.16.99",)
    assert len(taken.notes) == 1
    assert taken.notes[0].startswith("`six` ")


def test_a_local_package_that_does_not_build_is_refused_where_the_script_needs_it(user: User, tmp_path: Path) -> None:
    project = tmp_path / "broken"
    project.mkdir()
    (project / "pyproject.toml").write_text("[build-system]\nrequires = 5\n")
    (project / "broken.py").touch()
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    user.site.install("broken", files={"broken.pth": f"{project}\n"}, origin=origin)
    with pytest.raises(JobInvalid, match="`broken`"):
        user.take("import broken")
    taken = user.take("try:\n    import broken\nexcept ImportError:\n    pass\n")
    assert taken.lines == ()
    assert len(taken.notes) == 1


def test_an_index_that_cannot_be_asked_stops_nothing(user: User, tmp_path: Path) -> None:
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_INDEX_URL": "http://127.0.0.1:9/simple"}
    found = resolve(["six==1.16.0"], "3.11", tmp_path / "kept", user.settings.for_tools(), nowhere)
    assert (found.checked, found.absent, found.names) == (False, (), ())
    assert found.reason
