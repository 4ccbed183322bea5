"""The packages of the submitting Python on a node: installed once, reported, with the requested Python."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from agentnode import Node

from stoker.agent.environment import python as uvtool
from stoker.agent.pack import pack
from stoker.model.cause import Cause
from stoker.model.job.sections import Software
from stoker.model.run.report import Outcome, Report

UV = ("--uv", str(Path(sys.executable).with_name("uv")))
HERE = ".".join(map(str, sys.version_info[:2]))
TELL = "python -c 'import six, sys; print(six.__version__, sys.prefix)'"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("agents"))


def carried_out(node: Node, run: str, files: dict[str, str], software: Software, **job: Any) -> Report:
    node.order(run, files, software=software, python="", **job)
    return node.finish(node.start(*UV))


def test_the_same_packages_are_installed_once_for_runs_of_other_code(tmp_path: Path, agent: Path) -> None:
    told: list[str] = []
    for name in ("one", "two"):
        node = Node(tmp_path / name, agent)
        node.environments = tmp_path / "environments"
        files = {".stoker/packages.txt": "six==1.16.0\n", f"{name}.py": name}
        report = carried_out(node, TELL, files, Software(HERE, packages=1))
        assert report.outcome is Outcome.SUCCEEDED, report.message
        assert report.packages["six"] == "1.16.0"
        assert report.packages["python"].startswith(f"{HERE}.")
        assert node.log().startswith(b"1.16.0 " + str(tmp_path / "environments").encode())
        told += node.events("environment")
    assert "was installed in" in told[0]
    assert "from an earlier run" in told[1]


def test_versions_are_those_of_the_list_whatever_packages_say_of_each_other(tmp_path: Path, agent: Path) -> None:
    """As pip lets people have them, and as they worked where the run comes from."""
    node = Node(tmp_path / "node", agent)
    listed = "requests==2.31.0\nurllib3==1.20\nidna==2.0\ncertifi==2024.2.2\ncharset-normalizer==3.3.2\n"
    report = carried_out(node, "true", {".stoker/packages.txt": listed}, Software(HERE, packages=5))
    assert report.outcome is Outcome.SUCCEEDED, report.message
    assert {name: report.packages[name] for name in ("urllib3", "idna")} == {"urllib3": "1.20", "idna": "2.0"}


def test_a_script_that_needs_no_package_gets_none(tmp_path: Path, agent: Path) -> None:
    node = Node(tmp_path / "node", agent)
    report = carried_out(node, "python -c 'import json'", {}, Software(HERE))
    assert report.outcome is Outcome.SUCCEEDED, report.message
    assert node.events("environment") == []
    assert "python" in report.packages


def test_a_python_that_is_unavailable_is_reported_and_the_machines_own_is_used(tmp_path: Path, agent: Path) -> None:
    node = Node(tmp_path / "node", agent)
    report = carried_out(node, "python -c 1", {}, Software("3.99"))
    assert report.outcome is Outcome.SUCCEEDED, report.message
    told = " ".join(node.events("environment"))
    assert "3.99" in told
    assert f"using `{sys.executable}` instead" in told


def test_a_python_that_the_job_insists_on_breaks_the_run(tmp_path: Path, agent: Path) -> None:
    node = Node(tmp_path / "node", agent)
    report = carried_out(node, "python -c 1", {}, Software("3.99"), environment={"python": "3.99"})
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.PYTHON_MISSING)
    assert "3.99" in report.message


def test_a_package_that_is_nowhere_breaks_the_run_by_its_name(tmp_path: Path, agent: Path) -> None:
    node = Node(tmp_path / "node", agent)
    report = carried_out(node, "true", {".stoker/packages.txt": "six==99.99\n"}, Software(HERE, packages=1))
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.INSTALL_FAILED)
    assert "six" in report.message


def test_a_tool_is_taken_only_as_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("uv-1.data/scripts/uv", "#!/bin/sh\necho here\n")
    data, said, asked = archive.getvalue(), list[str](), list[str]()

    def answer(request: object, timeout: float) -> BytesIO:
        asked.append(request.full_url)  # type: ignore[attr-defined]
        return BytesIO(data)

    monkeypatch.setattr(uvtool, "urlopen", answer)
    machine, sha256 = os.uname().machine, hashlib.sha256(data).hexdigest()

    def tell(_: str, text: str) -> None:
        said.append(text)

    assert uvtool.bring_uv({machine: f"https://host/uv.whl#sha256={'0' * 64}"}, tmp_path, tell) is None
    assert said == ["could not download uv: checksum mismatch"]
    assert list(tmp_path.iterdir()) == []
    found = uvtool.bring_uv({machine: f"https://host/uv.whl#sha256={sha256}"}, tmp_path, tell)
    assert found and os.access(found, os.X_OK)
    assert uvtool.bring_uv({machine: f"https://host/uv.whl#sha256={sha256}"}, tmp_path, tell) == found
    assert asked == ["https://host/uv.whl"] * 2
    for none in ({}, {machine: "http://host/uv.whl"}, {machine: f"http://host/uv.whl#sha256={sha256}"}):
        assert uvtool.bring_uv(none, tmp_path, tell) is None


def test_a_node_without_a_container_engine_says_so(tmp_path: Path, agent: Path) -> None:
    node = Node(tmp_path, agent)
    (tmp_path / "bin").mkdir()
    node.order("python train.py", environment={"image": "x:1"})
    report = node.finish(node.start(PATH=str(tmp_path / "bin")))
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.CONTAINER_UNUSABLE)
