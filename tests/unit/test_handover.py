"""The file for practitioners: what it says, and what is said of one that is not as it should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.errors import BadInput
from stoker.model.handover import Handover, TeamStore, read_handover

TEAM = Handover(
    "vision-team",
    {"azure": {"subscription": "s", "workspace": "vision-team", "regions": ["westeurope"]}},
    TeamStore("vision-team", "https://acc.blob.core.windows.net/stoker"),
    ("az login --tenant t",),
)


def changed(**facts: Any) -> str:
    return json.dumps({**json.loads(TEAM.to_text()), **facts})


def test_what_was_written_is_read_again() -> None:
    assert read_handover(TEAM.to_text(), "team.json") == TEAM


def test_a_file_of_a_later_minor_form_is_read_as_far_as_it_is_known() -> None:
    assert read_handover(changed(colour="blue"), "team.json") == TEAM


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "team.json is damaged"),
        (TEAM.to_text()[:-20], "team.json is damaged"),
        ("[]", "team.json is not the file of a workspace"),
        ('{"subscription": "s"}', "team.json is not the file of a workspace"),
        (changed(version=2), "newer Stoker: its version is 2, this one reads 1"),
        (changed(version="1"), "damaged: its version is '1'"),
        (changed(version=0), "damaged: its version is 0"),
        (changed(accounts=[]), "team.json is damaged"),
        (changed(accounts={"azure": "x"}), "damaged: a part is missing or of another form"),
        (changed(accounts={"../../etc": {}}), "is no provider's account"),
        (changed(name=7), "a name in it is no text"),
        (changed(name="../up"), "`../up` cannot name a workspace"),
        (changed(store={"url": "x"}), "team.json is damaged"),
        (changed(accounts={"azure": {"client_secret": "hush"}}), "holds a secret, `client_secret`"),
        (changed(store={"name": "a", "url": "b", "values": {"key": "hush"}}), "holds a secret, `key`"),
    ],
)
def test_anything_else_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_handover(text, "team.json")
    assert says in caught.value.message
    assert "hush" not in str(caught.value)
