"""Nodes with real agents and a store between them: one builds an environment, the others restore it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from agentnode import Node, eventually

from stoker.agent.pack import pack
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, BuiltEnvironment
from stoker.model.job.job import Environment
from stoker.model.job.sections import LOCK
from stoker.model.run.report import Outcome, Report
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]
UV = str(Path(sys.executable).with_name("uv"))
HERE = f"{sys.version_info[0]}.{sys.version_info[1]} on {sys.platform}-{os.uname().machine}"
SHELF = layout.environments("somebody")
TELL = "python -c 'import six, sys; print(six.__version__, sys.prefix)'"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Mapping[str, str]]:
    """The files of a run that requires these packages, locked as `stoker run` does."""
    place = tmp_path_factory.mktemp("locks")

    def files(*packages: str) -> Mapping[str, str]:
        listed = place / "requirements.txt"
        listed.write_text("\n".join(packages))
        command = [UV, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", str(listed)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {"requirements.txt": listed.read_text(), LOCK: f"# python {HERE}\n{text}"}

    return files


class SharingNode(Node):
    """With a disk and a run of its own, and environments that it shares."""

    def __init__(self, root: Path, name: str, agent: Path) -> None:
        super().__init__(root / name, agent)
        (root / "environments").mkdir(exist_ok=True)
        link = self.root / "store" / layout.ENVIRONMENTS.rstrip("/")
        link.parent.mkdir(parents=True)
        link.symlink_to(root / "environments")
        self.store = FolderStore(self.root / "store")

    def begin(self, files: Mapping[str, str], run: str = TELL, shelf: str = SHELF, **variables: str) -> Any:
        self.order(run, files, environment=Environment(requirements="requirements.txt"), shelf=shelf)
        return self.start("--uv", UV, **variables)

    def carry_out(self, files: Mapping[str, str], run: str = TELL, shelf: str = SHELF, **variables: str) -> Report:
        report = self.finish(self.begin(files, run, shelf, **variables))
        assert report.outcome is Outcome.SUCCEEDED, report.message
        return report

    @property
    def venv(self) -> Path:
        (complete,) = self.environments.glob(f"*/{COMPLETE}")
        return complete.parent

    @property
    def restored(self) -> bool:
        """Its environment is from the store: one that is built on the node names no list."""
        return bool(load(BuiltEnvironment, (self.venv / COMPLETE).read_bytes()).listed)


def keys(node: Node, prefix: str) -> set[str]:
    return {one.key for one in node.store.list(prefix.rstrip("/"))}


def test_what_one_node_built_is_restored_on_another_one_without_the_index(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = locks("six==1.16.0", "pytest==8.3.2")
    first, second = SharingNode(tmp_path, "1", agent), SharingNode(tmp_path, "2", agent)
    built = first.carry_out(files, TELL + " && pytest --version")
    assert not first.restored
    assert keys(first, layout.environment_heads(SHELF)) == {layout.environment_head(SHELF, built.environment)}
    shutil.rmtree(first.environments)
    away = {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "UV_FIND_LINKS": "", "PIP_FIND_LINKS": ""}
    restored = second.carry_out(files, TELL + " && pytest --version", **away)
    assert second.restored
    assert restored.environment == built.environment
    assert restored.packages == built.packages
    assert second.log().startswith(b"1.16.0 " + str(second.environments).encode())
    assert b"pytest 8.3.2" in second.log()  # a command of the venv, in its new folder
    head = load(BuiltEnvironment, first.store.get(layout.environment_head(SHELF, built.environment)))
    assert head.packages["six"] == "1.16.0"
    assert head.name == "ants"


def test_an_environment_that_differs_in_a_package_moves_only_that_package(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    one, two = locks("six==1.16.0", "pygments==2.18.0"), locks("six==1.17.0", "pygments==2.18.0")
    SharingNode(tmp_path, "1", agent).carry_out(one)
    restoring = SharingNode(tmp_path, "2", agent)
    restoring.carry_out(one)
    before = keys(restoring, layout.environment_packs(SHELF))
    SharingNode(tmp_path, "3", agent).carry_out(two)
    added = keys(restoring, layout.environment_packs(SHELF)) - before
    assert sum(len(restoring.store.get(key)) for key in added) < 200_000  # pygments has 4 MB
    again = SharingNode(tmp_path, "4", agent)
    again.environments = restoring.environments
    again.carry_out(two)
    (venv,) = [one.parent for one in again.environments.glob(f"*/{COMPLETE}") if b"1.17" in one.read_bytes()]
    files = [one for one in (venv / "lib").rglob("*.py") if one.is_file()]
    assert {one.name for one in files if one.stat().st_nlink == 1} == {"six.py"}
    assert again.log().startswith(b"1.17.0")


def test_of_two_nodes_at_once_one_builds_and_the_other_one_waits(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = locks("six==1.16.0", "pygments==2.18.0")
    nodes = [SharingNode(tmp_path, name, agent) for name in ("1", "2", "3")]
    agents = [node.begin(files) for node in nodes]
    for node, process in zip(nodes, agents, strict=True):
        assert node.finish(process).outcome is Outcome.SUCCEEDED
    assert sorted(node.restored for node in nodes) == [False, True, True]


def test_a_build_that_was_killed_leaves_nothing_that_is_used(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node takes over once its lease is not renewed; the same one begins anew."""
    files = locks("six==1.16.0")
    slow = tmp_path / "slow-uv"
    slow.write_text(f'#!/bin/sh\n[ "$1" = pip ] && mkdir -p {tmp_path}/building && sleep 600\nexec {UV} "$@"\n')
    slow.chmod(0o755)
    first = SharingNode(tmp_path, "1", agent)
    first.order(TELL, files, environment=Environment(requirements="requirements.txt"), shelf=SHELF)
    process = first.start("--uv", str(slow))
    eventually((tmp_path / "building").exists, "the build")
    process.kill()
    process.wait()
    first.kill()
    assert not keys(first, layout.environment_heads(SHELF))
    leases = keys(first, f"{SHELF}building/")
    assert len(leases) == 1
    again = SharingNode(tmp_path, "2", agent)
    again.environments = first.environments
    again.store.put(leases.pop(), b"over")  # as after the time in which it is not renewed
    again.carry_out(files)
    assert not again.restored
    assert keys(again, layout.environment_heads(SHELF))


@pytest.mark.parametrize("damage", ["pack", "list", "head"])
def test_what_is_damaged_in_the_store_is_not_used_and_is_replaced(
    damage: str, tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = locks("six==1.16.0")
    first = SharingNode(tmp_path, "1", agent)
    first.carry_out(files)
    prefix = {"pack": layout.environment_packs(SHELF), "list": f"{SHELF}lists/", "head": f"{SHELF}heads/"}[damage]
    for key in keys(first, prefix):
        data = first.store.get(key)
        first.store.put(key, data.replace(b"six", b"sex") if damage == "pack" else data[: len(data) // 2])
    second, third = SharingNode(tmp_path, "2", agent), SharingNode(tmp_path, "3", agent)
    second.carry_out(files)
    assert not second.restored
    third.carry_out(files)
    assert third.restored


def test_nodes_of_another_owner_find_nothing(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = locks("six==1.16.0")
    SharingNode(tmp_path, "1", agent).carry_out(files)
    other = SharingNode(tmp_path, "2", agent)
    other.carry_out(files, shelf=layout.environments("another"))
    assert not other.restored


def test_a_hash_that_differs_breaks_the_run_and_leaves_its_turn_to_others(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = dict(locks("six==1.16.0"))
    good = dict(files)
    files[LOCK] = re.sub("sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", files[LOCK])
    node = SharingNode(tmp_path, "1", agent)
    report = node.finish(node.begin(files))
    assert report.outcome is Outcome.BROKEN
    assert report.cause == Cause.INSTALL_FAILED
    assert "Hash mismatch" in report.message, report.message
    assert b"six" in node.log()
    assert not keys(node, layout.environment_heads(SHELF))
    assert all(node.store.get(key) == b"over" for key in keys(node, f"{SHELF}building/"))
    SharingNode(tmp_path, "2", agent).carry_out(good)


def test_a_full_disk_ends_the_run_and_leaves_nothing_that_is_used(
    tmp_path: Path, agent: Path, locks: Callable[..., Mapping[str, str]]
) -> None:
    files = locks("six==1.16.0", "pygments==2.18.0")
    SharingNode(tmp_path, "1", agent).carry_out(files)
    node = SharingNode(tmp_path, "2", agent)
    node.environments.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", node.environments]).returncode:
        pytest.skip("only root can make a small disk")
    try:
        report = node.finish(node.begin(files))
        assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.DISK_FULL)
        assert not list(node.environments.glob(f"*/{COMPLETE}"))
        subprocess.run(["mount", "-o", "remount,size=90m", node.environments], check=True)
        again = SharingNode(tmp_path, "3", agent)
        again.environments = node.environments
        again.carry_out(files)
        assert again.restored
    finally:
        subprocess.run(["umount", "--lazy", node.environments], check=True)
