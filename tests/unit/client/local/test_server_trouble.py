"""Why a server could not start, as its log and its process tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.local.launch import _could_not
from stoker.model.workspace.home import Home

SLOW = "it did not respond within 50 s"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_server_that_is_only_slow_is_not_blamed_on_a_line_of_its_log(home: Home) -> None:
    home.server_log.write_text("WARNING stoker.server.settings: the folder was accessible to others\n")
    assert _could_not(home, 0, SLOW, ended=False).message == f"the server could not start: {SLOW}"


def test_the_last_line_of_a_server_that_ended_says_why(home: Home) -> None:
    home.server_log.write_text("Traceback\nImportError: no module named x\n")
    assert _could_not(home, 0, "it ended", ended=True).message.endswith("ImportError: no module named x")


@pytest.mark.parametrize("ended", [False, True])
def test_an_error_that_it_printed_is_the_reason(home: Home, ended: bool) -> None:
    home.server_log.write_text("error: port taken\nhint: stoker server stop\nbye\n")
    found = _could_not(home, 0, SLOW, ended=ended)
    assert (found.message, found.hint) == ("the server could not start: port taken", "stoker server stop")
