"""`stoker admin setup` and `teardown` say what they are doing before the cloud has answered: it may take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stoker.cli.commands.setup.cloud import set_up, tear_down
from stoker.model.node import Need
from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece
from stoker.model.workspace.store import CheckResult, Finding

ASKED = GivenOptions({"workspace": "vision-team"})
DRY = {"dry_run": True, "yes": False, "force": False, "out": None}


class SlowCloud:
    """Keeps what the user had been told whenever the cloud was asked something."""

    def __init__(self, told: pytest.CaptureFixture[str]) -> None:
        self._told = told
        self.at_preflight, self.at_second_check, self.at_plan, self.at_survey = "", "", "", ""

    def preflight(self, _asked: GivenOptions, _needs: Sequence[Need]) -> Iterator[Finding]:
        self.at_preflight = self._told.readouterr().err
        yield Finding("limits", CheckResult.WARN, "970 of 980 resource groups")
        self.at_second_check = self._told.readouterr().err

    def plan(self, _asked: GivenOptions) -> list[GroundworkPiece]:
        self.at_plan = self._told.readouterr().err
        return []

    def survey(self, _asked: GivenOptions) -> list[GroundworkPiece]:
        self.at_survey = self._told.readouterr().err
        return []


@pytest.fixture
def cloud(capsys: pytest.CaptureFixture[str]) -> SlowCloud:
    return SlowCloud(capsys)


def test_a_set_up_says_what_it_checks_and_each_problem_when_it_is_known(cloud: Any) -> None:
    assert set_up(cloud, ASKED, {**DRY, "as_json": False}) == 0
    assert cloud.at_preflight == "checking the account …\n"
    assert "970 of 980 resource groups" in cloud.at_second_check
    assert cloud.at_plan == "checking what vision-team has …\n"


def test_a_teardown_says_that_it_lists_what_exists(cloud: Any) -> None:
    assert tear_down(cloud, ASKED, {**DRY, "as_json": False}) == 0
    assert cloud.at_survey == "checking what vision-team has …\n"


def test_with_json_nothing_but_the_result_is_printed(cloud: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert set_up(cloud, ASKED, {**DRY, "as_json": True}) == 0
    assert (cloud.at_preflight, cloud.at_second_check, cloud.at_plan, capsys.readouterr().err) == ("", "", "", "")
