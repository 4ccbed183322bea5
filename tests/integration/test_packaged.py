"""The wheel, built and installed as a user would, in an otherwise empty environment."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_quickstart_runs_with_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """`make release` does the same with the sdist."""
    spec = importlib.util.spec_from_file_location("ci_release", ROOT / ".ci" / "release.py")
    assert spec and spec.loader
    release = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(release)
    wheel, _ = release.built(tmp_path / "dist")
    release.require_complete(wheel, release.in_wheel(wheel))
    release.try_out(wheel)
