"""What is only cached is deleted when nobody has used it for long enough."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stoker.stores.trees.clearing import mark_used, remove_unused, unused

DAY_S = 86_400.0


def kept(folder: Path, name: str, age_s: float, now: float) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 5000)
    for one in {path, path.parent} - {folder}:
        os.utime(one, (now - age_s, now - age_s))
    return path


def test_what_was_used_lately_stays_and_the_rest_goes(tmp_path: Path) -> None:
    now = time.time()
    old, wheel = kept(tmp_path, "old.txt", 40 * DAY_S, now), kept(tmp_path, "abc/p.whl", 40 * DAY_S, now)
    used, young = kept(tmp_path, "def/q.whl", 40 * DAY_S, now), kept(tmp_path, "young.json", DAY_S, now)
    mark_used(used.parent)
    assert set(unused(tmp_path, 30 * DAY_S, now)) == {old, wheel.parent}
    assert remove_unused(tmp_path, 30 * DAY_S, now) >= 10_000
    assert {one.name for one in tmp_path.iterdir()} == {"def", "young.json"} and used.exists() and young.exists()


def test_what_a_submission_has_just_found_stays_whatever_the_rule(tmp_path: Path) -> None:
    now = time.time()
    found = kept(tmp_path, "list.txt", 60.0, now)
    assert remove_unused(tmp_path, 0.0, now) == 0 and found.exists()
    assert remove_unused(tmp_path / "missing", 0.0, now) == 0
