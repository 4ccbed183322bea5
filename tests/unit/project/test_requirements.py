"""The lock: it contains what pyproject.toml requires, with a hash for every file, and does not name its source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVER = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["azure"]]
WANTED = {"server": SERVER, "development": [*SERVER, *PROJECT["dependency-groups"]["dev"]], "installer": ["uv"]}


def locked(name: str) -> dict[str, dict[str, list[str]]]:
    """Hashes by version, by package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    found: dict[str, dict[str, list[str]]] = {}
    for entry in re.split(r"\n(?=\S)", text):
        if pin := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry):
            versions = found.setdefault(canonicalize_name(pin[1]), {})
            versions[pin[2]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
    return found


@pytest.mark.parametrize("name", WANTED)
def test_the_lock_satisfies_the_project(name: str) -> None:
    """`make lock` renews it."""
    found = locked(name)
    for line in WANTED[name]:
        wanted = Requirement(line)
        versions = found.get(canonicalize_name(wanted.name), {})
        assert versions, f"{wanted.name} is not locked"
        assert all(wanted.specifier.contains(version) for version in versions), f"{line}: locked are {list(versions)}"


@pytest.mark.parametrize("name", WANTED)
def test_every_locked_package_has_hashes(name: str) -> None:
    assert [package for package, versions in locked(name).items() if not all(versions.values())] == []


@pytest.mark.parametrize("name", WANTED)
def test_the_lock_names_no_host_and_no_folder(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|--index|--find-links|--extra|@ ", text)


def test_the_server_gets_what_was_tested() -> None:
    tested = locked("development")
    assert {name: tested.get(name) for name in locked("server")} == locked("server")


def test_torch_has_no_hash_because_its_file_depends_on_the_machine() -> None:
    assert not {"torch", "jax", "keras", "transformers"} & set(locked("development"))


def test_the_install_takes_nothing_but_the_lock() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = makefile.replace("\\\n", "").split("\n.venv/uv:")[1].split("# Azurite")[0]
    installs = [line for line in rules.splitlines() if line.startswith(("\t$(INSTALL)", "\t$(BIN)/python -m pip"))]
    assert [("--require-hashes" in line, "--no-deps" in line) for line in installs] == [
        (True, False),
        (True, False),
        (False, True),
    ]
