"""A missing Python is downloaded by uv: if that fails, the attempt continues, and reports why."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.environment import python


def fake_uv(folder: Path, script: str) -> str:
    tool = folder / "uv"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def told_by(uv: str) -> tuple[str | None, list[str]]:
    said: list[str] = []
    return python.bring_python("3.12", uv, {"PATH": "/usr/bin:/bin"}, lambda _kind, text: said.append(text)), said


def test_the_path_that_uv_tells_is_taken(tmp_path: Path) -> None:
    found, said = told_by(fake_uv(tmp_path, 'test "$2" = install || echo /opt/python3.12'))
    assert (found, said) == ("/opt/python3.12", ["downloaded Python 3.12"])


@pytest.mark.parametrize(
    ("script", "why"), [("echo no route >&2; exit 2", "no route"), ("exec sleep 60", "timed out after 0.3 seconds")]
)
def test_a_download_that_fails_or_never_ends_is_reported_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(python, "BRING_S", 0.3)
    found, said = told_by(fake_uv(tmp_path, script))
    assert found is None
    assert [why in line for line in said] == [True]


def test_a_uv_that_does_not_start_is_reported(tmp_path: Path) -> None:
    found, said = told_by(str(tmp_path / "none"))
    assert found is None
    assert "No such file" in said[0]
