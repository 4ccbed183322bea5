"""What `stoker uninstall` treats as Stoker's own on this computer, and what it does not touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.local import footprint
from stoker.client.settings import ClientSettings, from_environment
from stoker.model.workspace.home import Home


@pytest.fixture
def settings(tmp_path: Path) -> ClientSettings:
    (tmp_path / "home").mkdir()
    return from_environment({"STOKER_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "USER": "ann"})


def test_every_place_that_a_home_has_is_removed(settings: ClientSettings) -> None:
    names = [name for name, kind in vars(Home).items() if isinstance(kind, property)]
    for name in names:
        getattr(settings.home, name).mkdir()
    assert len(names) > 20 and footprint.stays(settings) == []
    assert footprint.remove(settings) == []
    assert not settings.home.root.exists()


def test_what_somebody_else_put_there_stays(settings: ClientSettings) -> None:
    (settings.home.root / "notes.txt").write_text("mine")
    settings.home.software.mkdir()
    assert footprint.remove(settings) == []
    assert [one.name for one in settings.home.root.iterdir()] == ["notes.txt"]


def test_a_folder_that_stoker_never_used_is_no_home_whatever_is_in_it(settings: ClientSettings) -> None:
    for name in ("cache", "store", "nodes", "secrets", "environments"):
        (settings.home.root / name).mkdir()
    assert not footprint.is_home(settings)
    settings.home.database.write_bytes(b"")
    assert footprint.is_home(settings)


def test_a_file_of_somebodys_that_begins_like_one_of_ours_stays(settings: ClientSettings) -> None:
    (settings.home.root / "resume-2026.pdf").write_text("mine")
    (settings.home.root / "resume-a1b2c3d4").mkdir()
    assert footprint.remove(settings) == []
    assert [one.name for one in settings.home.root.iterdir()] == ["resume-2026.pdf"]


def test_a_disk_that_a_link_leads_to_is_not_unmounted(
    settings: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, table = tmp_path / "disk", tmp_path / "mountinfo"
    disk.mkdir()
    settings.home.store.symlink_to(disk)
    settings.home.nodes.mkdir()
    ours = settings.home.nodes / "n1" / "data"
    table.write_text("".join(f"1 1 0:1 / {place} rw - fuse x rw\n" for place in (disk, ours)))
    monkeypatch.setattr(footprint, "_MOUNTS", table)
    assert footprint.mounts(settings) == [str(ours)]
