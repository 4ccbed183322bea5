"""The system stores credentials where it can; otherwise they are in one private file, and nowhere else."""

import stat
from pathlib import Path

import pytest

from stoker.errors import HomeUnusable
from stoker.server.stores.stores import Keychain, open_keychain


class Ring:
    """A keyring as the `keyring` package would find one."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.locked = False

    def _open(self) -> None:
        if self.locked:
            raise RuntimeError("locked")

    def get_password(self, service: str, username: str) -> str | None:
        self._open()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._open()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._open()
        del self.kept[service, username]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "credentials.json"


def test_without_a_keyring_a_private_file_keeps_secrets(file: Path) -> None:
    Keychain(file).keep("store blob", "s3cret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Keychain(file).get("store blob") == "s3cret"
    assert Keychain(file).get("another") is None
    Keychain(file).forget("store blob")
    assert Keychain(file).get("store blob") is None
    assert "s3cret" not in file.read_text()


def test_with_a_keyring_no_file_is_written(file: Path) -> None:
    ring = Ring()
    chain = Keychain(file, ring)
    chain.keep("store blob", "s3cret")
    assert chain.get("store blob") == "s3cret"
    assert not file.exists()
    chain.forget("store blob")
    chain.forget("store blob")
    assert ring.kept == {}


def test_two_homes_share_no_secret(tmp_path: Path) -> None:
    ring = Ring()
    one, other = (Keychain(tmp_path / name / "credentials.json", ring) for name in ("one", "other"))
    one.keep("store blob", "s3cret")
    assert other.get("store blob") is None


def test_a_keyring_that_is_locked_does_not_lose_a_secret(file: Path) -> None:
    ring = Ring()
    ring.locked = True
    Keychain(file, ring).keep("store blob", "s3cret")
    assert Keychain(file, ring).get("store blob") == "s3cret"


def test_what_was_kept_before_there_was_a_keyring_is_found(file: Path) -> None:
    Keychain(file).keep("store blob", "s3cret")
    assert Keychain(file, Ring()).get("store blob") == "s3cret"


def test_a_damaged_file_is_named_and_not_shown(file: Path) -> None:
    file.write_text("s3cret that is no JSON")
    with pytest.raises(HomeUnusable) as raised:
        Keychain(file).get("store blob")
    assert str(file) in raised.value.message
    assert "s3cret" not in str(raised.value)


def test_the_way_file_asks_no_keyring(file: Path) -> None:
    assert open_keychain(file, "file").place == str(file)


def test_a_keyring_that_keeps_nothing_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a server without a desktop."""
    import keyring
    from keyring.backends import fail

    monkeypatch.setattr(keyring, "get_keyring", fail.Keyring)
    assert open_keychain(file, "auto").place == str(file)
    monkeypatch.setattr(keyring, "get_keyring", Ring)
    assert open_keychain(file, "auto").place == "the system's keyring"
