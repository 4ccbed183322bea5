"""Azurite is installed by npm: announced before, and while it takes its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.local import rehearsal
from stoker.errors import TwinFailed
from stoker.model.workspace.home import Home


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the real npm, which takes a minute and a network."""
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(rehearsal, "SAY_EVERY_S", 0.1)


def test_the_install_is_announced_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, said = Home(tmp_path / "home"), list[str]()
    npm(tmp_path, f"head -c 2000000 /dev/zero > {home.azurite}/part; sleep 0.5", monkeypatch)
    rehearsal.install(home, said.append)
    assert said[0].startswith(f"installing Azurite {rehearsal.VERSION}")
    assert said[1] == "installing Azurite: 2 MB after 0 s"
    assert said[-1] == "installed Azurite"


def test_a_failed_install_gives_npms_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path, "echo ERR no network >&2; exit 1", monkeypatch)
    with pytest.raises(TwinFailed, match="ERR no"):
        rehearsal.install(Home(tmp_path / "home"), lambda _text: None)
