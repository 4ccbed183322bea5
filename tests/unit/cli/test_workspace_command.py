"""Files that are not a workspace, and missing options of an administrator: refused with a message, before any
request."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli import answer
from stoker.model.workspace.handover import Handover

SUBSCRIPTION = "ae13b4a7-54c4-47f6-9977-3b2fb95ebcf6"
TEAM = Handover("vision-team", {"azure": {"subscription": "s1", "workspace": "vision-team"}}).to_text()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a workspace, and where some files have arrived."""
    home = tmp_path / "home"
    (home / "workspaces").mkdir(parents=True)
    (home / "workspaces" / "vision-team.json").write_text(TEAM)
    (tmp_path / "newer.json").write_text(TEAM.replace('"version": 1', '"version": 9'))
    (tmp_path / "damaged.json").write_text(TEAM[:100])
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff\xfe")
    monkeypatch.setenv("STOKER_HOME", str(home))
    monkeypatch.delenv("AZURE_SUBSCRIPTION_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["use", "nowhere.json"], "no file or workspace named `nowhere.json`", "stoker workspace ls"),
        (["use", "vision-taem"], "no file or workspace named `vision-taem`", "did you mean `vision-team`?"),
        (["use", "newer.json"], "newer.json was written by a newer Stoker", "pip install --upgrade stoker"),
        (["use", "damaged.json"], "damaged.json is damaged", "ask your administrator"),
        (["use", "image.json"], "image.json cannot be read", "ask your administrator"),
        (["show", "other"], "no file or workspace named `other`", "stoker workspace ls"),
        (["show"], "no workspace is in use", "stoker workspace use FILE"),
    ],
)
def test_what_is_no_workspace_is_refused_with_a_message(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str, hint: str
) -> None:
    assert answer(["workspace", *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert hint in told
    assert sorted(path.name for path in home.iterdir()) == ["workspaces"]


def test_a_server_elsewhere_has_its_workspace_from_whoever_runs_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_SERVER", "http://127.0.0.1:1")
    assert answer(["workspace", "use", "vision-team"]) == 2
    assert "administrator of the server at http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["setup", "teardown"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--subscription is required"),
        (["--subscription", "mine"], "--subscription is `mine`"),
        (["--subscription", SUBSCRIPTION], "--workspace is required"),
    ],
)
def test_an_administrator_is_told_what_lacks_before_any_cloud_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str], command: str, words: list[str], says: str
) -> None:
    assert answer(["admin", command, "azure", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--budget", "much", "--mail", "a@b.org"], "the budget is `much`"),
        (["--budget", "200", "--mail", "anna"], "`anna` is not a mail address"),
        (["--network", "ten"], "the network is `ten`"),
        (["--practitioner", "anna"], "--practitioner is `anna`"),
    ],
)
def test_bad_options_of_a_set_up_are_refused_before_any_cloud_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    given = ["--workspace", "vision-team", "--subscription", SUBSCRIPTION, *words]
    assert answer(["admin", "setup", "azure", *given]) == 2
    assert says in capsys.readouterr().err
