"""What `stoker uninstall` removes: everything that Stoker puts into its home, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stoker.client import footprint
from stoker.client.settings import from_environment
from stoker.model.home import Home


def test_every_place_of_the_home_is_removed_and_nothing_else(tmp_path: Path) -> None:
    home = Home(tmp_path)
    named = [name for name, one in vars(Home).items() if isinstance(one, property)]
    for name in named:
        getattr(home, name).write_text("ours")
    (tmp_path / "notes.txt").write_text("somebody's own")
    settings = replace(from_environment({}), home=home)
    assert len(named) > 10
    assert footprint.stays(settings) == [str(tmp_path / "notes.txt")]
    assert footprint.remove(settings) == []
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]
