"""Callbacks that replace private methods of a framework refuse versions that they do not know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.checkpoint.surroundings import CALLBACKS, MADE_FOR

ROOT = Path(__file__).parents[3]
MODULES = {"keras": "keras", "lightning": "lightning", "transformers": "huggingface"}
each_framework = pytest.mark.parametrize("name", CALLBACKS)


def imported(name: str, version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Imports the callback where this version of its framework claims to be installed; there is nothing else of it."""
    told = folder / f"{name}-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / f"{name}.py").write_text("raise ImportError('the framework itself was reached')\n")
    words = [sys.executable, "-c", f"import stoker.checkpoint.{MODULES[name]}"]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(words, capture_output=True, text=True, env=environ, check=False)


@each_framework
def test_a_version_outside_the_range_is_refused_with_what_to_install(name: str, tmp_path: Path) -> None:
    first, before = (".".join(map(str, one)) for one in CALLBACKS[name])
    done = imported(name, f"{before}.1", tmp_path)
    assert done.returncode
    assert f"supports {name} from {first} to below {before}, and {name} {before}.1 is installed" in done.stderr
    assert f"pip install '{name}>={first},<{before}'" in done.stderr
    assert "the framework itself was reached" not in done.stderr


@each_framework
def test_a_version_inside_the_range_is_used(name: str, tmp_path: Path) -> None:
    done = imported(name, ".".join(map(str, CALLBACKS[name][0])) + ".7", tmp_path)
    assert "the framework itself was reached" in done.stderr


@each_framework
def test_the_version_that_the_tests_use_is_in_the_range(name: str) -> None:
    pinned = re.search(rf'"{name}==(\d+)\.(\d+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned
    first, before = CALLBACKS[name]
    assert first <= (int(pinned[1]), int(pinned[2])) < before
    assert name not in MADE_FOR or MADE_FOR[name][0] <= first < before <= MADE_FOR[name][1]


@each_framework
def test_the_guide_says_which_versions_a_callback_supports(name: str) -> None:
    guide = (ROOT / "docs" / "guides" / "survive-eviction.md").read_text(encoding="utf-8")
    (a, b), (c, d) = CALLBACKS[name]
    assert re.search(rf"\| `stoker\.checkpoint\.{MODULES[name]}` \| \w+ {a}\.{b} to {c}\.{d - 1} \|", guide)
