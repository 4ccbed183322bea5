from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker import files


def test_only_one_holds_it_and_the_next_may_have_it_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with files.held(path, timeout_s=1):
        assert files.is_held(path)
        with pytest.raises(TimeoutError), files.held(path, timeout_s=0.02):
            pass
    assert not files.is_held(path)
    with files.held(path, timeout_s=0):
        pass


def test_looking_leaves_it_free_and_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not files.is_held(path)
    assert not path.exists()
    path.touch()
    assert not files.is_held(path)
    with files.held(path, timeout_s=0):
        pass


def test_it_is_released_when_the_holder_fails(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), files.held(path, timeout_s=0):
        raise ZeroDivisionError
    assert not files.is_held(path)


def test_a_place_that_cannot_hold_a_lock_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError), files.held(tmp_path / "missing" / "lock", timeout_s=0):
        pass


def test_looking_does_not_make_another_one_who_looks_think_that_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open("r+b") as looking:
        assert files.take(looking.fileno(), shared=True)
        assert not files.is_held(path)


def test_a_lock_that_is_claimed_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = files.claim(path)
    assert mine is not None
    assert files.claim(path, timeout_s=0.03) is None
    assert files.is_held(path)
    os.close(mine)
    assert not files.is_held(path)


def test_whoever_waits_without_a_limit_gets_it_when_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = files.claim(path)
    assert mine is not None
    threading.Timer(0.05, os.close, (mine,)).start()
    with files.held(path):
        assert files.is_held(path)
