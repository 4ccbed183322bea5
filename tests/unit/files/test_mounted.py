"""Where a home is, as far as its locks and its database must know."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stoker.errors import HomeUnusable
from stoker.files.mounted import MountedAt, mounted_at
from stoker.model.workspace.home import Home
from stoker.server import settings
from stoker.server.records import database
from stoker.server.records.database import Database

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /home rw,relatime shared:2 - nfs4 filer:/home rw,vers=4.2,local_lock=none
41 22 0:51 / /old\040home rw,relatime - nfs filer:/old rw,nolock,local_lock=all
42 40 8:2 / /home/me/local rw - xfs /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "shared", "option"),
    [
        ("/srv/x", "ext4", False, ""),
        ("/home/me/.stoker", "nfs4", True, ""),
        ("/home/me/local/.stoker", "xfs", False, ""),
        ("/homes", "ext4", False, ""),
        ("/old home/me", "nfs", True, "local_lock=all"),
    ],
)
def test_the_file_system_of_a_folder_is_the_one_nearest_to_it(
    tmp_path: Path, path: str, kind: str, shared: bool, option: str
) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    found = mounted_at(Path(path), tmp_path / "mountinfo")
    assert (found.kind, found.is_shared, found.local_locks) == (kind, shared, option)


def test_a_home_whose_locks_other_computers_do_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "mounted_at", lambda _: MountedAt("nfs", frozenset({"nolock"})))
    with pytest.raises(HomeUnusable, match="nolock"):
        settings.make_private(Home(tmp_path))


def test_a_database_on_a_shared_file_system_has_no_log_in_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shared, mode in ((MountedAt("nfs4"), "delete"), (MountedAt("ext4"), "wal")):
        monkeypatch.setattr(database, "mounted_at", lambda _, there=shared: there)
        path = tmp_path / f"{mode}.db"
        Database.open(path).close()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
