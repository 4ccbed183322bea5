"""What isolated machines see of the host."""

from pathlib import Path

import pytest

from stoker.errors import TwinFailed
from stoker.twin.machines.walled import Walled, outermost


def test_a_folder_that_another_has_in_it_is_shown_once() -> None:
    assert outermost(("/usr", "/usr/lib/python3", "/a/b", "/a", "/a/", "/ab")) == ("/usr", "/a", "/ab")


def test_machines_cannot_be_kept_in_a_folder_that_they_show() -> None:
    with pytest.raises(TwinFailed, match="/opt/x"):
        Walled(Path("/opt/x"))
