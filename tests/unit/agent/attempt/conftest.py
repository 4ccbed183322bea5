"""Worlds of attempts, whose threads end with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from attemptworld import World


@pytest.fixture
def nothing_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The last phase leaves the folder that it removes, and so changes the directory of the whole process."""
    monkeypatch.chdir(tmp_path)
    yield
    while World.made:
        World.made.pop().end()
