from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client import lock


def test_only_one_holds_it_and_the_next_may_have_it_afterwards(tmp_path: Path):
    path = tmp_path / "lock"
    with lock.held(path, timeout_s=1):
        assert lock.is_held(path)
        with pytest.raises(TimeoutError), lock.held(path, timeout_s=0.02):
            pass
    assert not lock.is_held(path)
    with lock.held(path, timeout_s=0):
        pass


def test_looking_leaves_it_free_and_makes_no_file(tmp_path: Path):
    path = tmp_path / "lock"
    assert not lock.is_held(path)
    assert not path.exists()
    path.touch()
    assert not lock.is_held(path)
    with lock.held(path, timeout_s=0):
        pass


def test_it_is_given_back_when_the_holder_fails(tmp_path: Path):
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), lock.held(path, timeout_s=0):
        raise ZeroDivisionError
    assert not lock.is_held(path)


def test_a_place_that_cannot_hold_a_lock_is_an_os_error(tmp_path: Path):
    with pytest.raises(OSError), lock.held(tmp_path / "missing" / "lock", timeout_s=0):
        pass
