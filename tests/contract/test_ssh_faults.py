"""What a host can do wrong: each is told in words that say what to do, and nothing is left there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import NoCapacity, ProviderUnavailable
from stoker.model.node import NodeState
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.ssh import SshProvider
from stoker.stores.access import Access, Route
from stoker.testing.ssh_hosts import HostYard, TestHost, lacking, sleeping, ssh_hosts

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


class Lab:
    def __init__(self, yard: HostYard, folder: Path) -> None:
        self.yard, self.folder, self.made = yard, folder, list[SshProvider]()

    @property
    def host(self) -> TestHost:
        return self.yard.hosts[0]

    def provider(self, name: str = "home", slots: int = 1) -> SshProvider:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        (home / "ssh.hosts").write_text(self.yard.text(slots))
        self.made.append(SshProvider(Setup(Home(home), server=name)))
        return self.made[-1]

    def start(self, provider: SshProvider, key: str = "r-1") -> None:
        provider.start(sleeping(provider, self.folder / "home", key))

    def refusal(self) -> str:
        """What a start says where the only host cannot be used: the whole text, with its hint."""
        provider = self.provider()
        with pytest.raises(NoCapacity) as caught:
            self.start(provider)
        assert provider.look() == [], "nothing was started, so nothing is seen"
        return str(caught.value)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with ssh_hosts(tmp_path / "y", 1) as yard:
        monkeypatch.setenv("PATH", f"{yard.path}{os.pathsep}{os.environ['PATH']}")
        lab = Lab(yard, tmp_path)
        yield lab
        for provider in lab.made:
            provider.close()


def test_an_unknown_host_key_is_never_accepted(lab: Lab) -> None:
    lab.yard.known.write_text("")
    said = lab.refusal()
    assert "the host key of `lab1` is unknown" in said and "log in once with `ssh lab1`" in said
    assert lab.yard.known.read_text() == ""


def test_a_changed_host_key_stops_everything_until_a_person_has_looked(lab: Lab) -> None:
    lab.host.make_key()
    lab.host.reconfigure()
    said = lab.refusal()
    assert "the host key of `lab1` has changed" in said and "ssh-keygen -R lab1" in said


def test_a_host_that_refuses_connections_is_named(lab: Lab) -> None:
    lab.host.crash()
    assert "host `lab1` refuses connections" in lab.refusal()


def test_a_login_that_is_refused_says_how_to_try_it(lab: Lab) -> None:
    lab.host.keys.write_text("")
    said = lab.refusal()
    assert "host `lab1` refuses the login" in said and "`ssh lab1 true` must work without a question" in said


def test_a_python_that_is_too_old_is_named_with_its_version(lab: Lab) -> None:
    old = lab.folder / "old"
    old.mkdir()
    (old / "sh").symlink_to("/bin/sh")
    (old / "python3").write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    (old / "python3").chmod(0o755)
    lab.host.variables = f"PATH={old}"
    lab.host.reconfigure()
    assert "host `lab1` has no Python 3.10 or newer: it has Python 3.9.2" in lab.refusal()


def test_a_full_disk_is_told_before_anything_is_started(lab: Lab) -> None:
    size = ["-o", "size=1m"]
    subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(lab.host.home)], check=True, capture_output=True)
    try:
        (lab.host.home / "data").write_bytes(b"x" * (1 << 20))
        assert "its disk is full" in lab.refusal()
    finally:
        lab.made[-1].close()
        subprocess.run(["umount", "-l", str(lab.host.home)], check=True, capture_output=True)


def test_a_store_that_the_host_cannot_reach_goes_through_the_connection(lab: Lab) -> None:
    provider = lab.provider()
    away = Access((Route("runs/", "http://203.0.113.1:10000/devstoreaccount1/runs", "token", writes=True),))
    request = replace(sleeping(provider, lab.folder / "home", "r-1"), access=away.to_text())
    provider.start(request)
    given = provider.carried("r-1", away)
    assert [route.url.partition("://")[0] for route in given.routes] == ["tunnel"]
    assert provider.carried("r-1", given) == given
    assert provider.carried("r-2", away) == away, "of another node, nothing is known yet"
    provider.stop("r-1")


def test_a_store_that_cannot_be_reached_in_any_way_is_told_before_anything_is_started(lab: Lab) -> None:
    lab.host.reconfigure("AllowStreamLocalForwarding no")
    provider = lab.provider()
    away = Access((Route("runs/", "http://203.0.113.1:10000/devstoreaccount1/runs"),))
    request = replace(sleeping(provider, lab.folder / "home", "r-1"), access=away.to_text())
    with pytest.raises(NoCapacity, match=r"203\.0\.113\.1"):
        provider.start(request)
    assert provider.look() == [] and not lab.host.agents()


def test_an_sshd_that_forwards_nothing_is_told_with_the_setting_to_change(lab: Lab) -> None:
    lab.host.reconfigure("AllowStreamLocalForwarding no")
    said = lab.refusal()
    assert "cannot reach the store through its sshd" in said and "`AllowStreamLocalForwarding`" in said


def test_two_servers_share_a_host_and_never_use_more_than_its_slots(lab: Lab) -> None:
    one, other = lab.provider("home"), lab.provider("other")
    lab.start(one, "r-1")
    with pytest.raises(NoCapacity, match="1 of its 1 slots are in use"):
        lab.start(other, "s-1")
    assert other.look() == [], "nor does it see what is not its own"
    other.stop("r-1")
    assert [sight.state for sight in one.look()] == [NodeState.UP]
    one.stop("r-1")
    lab.start(other, "s-1")
    assert [sight.state for sight in other.look()] == [NodeState.UP]
    other.stop("s-1")
    assert lab.host.nodes == [] and lab.host.agents() == []


def test_a_host_that_does_not_answer_is_unknown_and_not_gone(lab: Lab) -> None:
    provider = lab.provider()
    lab.start(provider)
    lab.host.crash()
    (sight,) = provider.look()
    assert (sight.state, "lab1" in sight.reason) == (NodeState.UP, True), sight
    with pytest.raises(ProviderUnavailable):
        provider.stop("r-1")
    (sight,) = provider.look()
    assert (sight.state, sight.still) == (NodeState.GONE, True), "whoever resumes the run need not wait for this host"
    lab.host.boot()
    for link in provider._links.values():
        link.close()
        link._trouble_at = 0.0
    provider.stop("r-1")
    assert provider.look() == [] and lab.host.nodes == []


def test_a_host_that_was_restarted_says_so(lab: Lab) -> None:
    provider = lab.provider()
    lab.start(provider)
    lab.host.crash()
    (identity,) = lab.host.home.glob(".stoker-node/*/nodes/r-1/identity.json")
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "boot": "an earlier one"}))
    lab.host.boot()
    again = lab.provider()
    (sight,) = again.look()
    assert (sight.state, sight.reason) == (NodeState.GONE, "its host was restarted (host `lab1`)")
    again.stop("r-1")
    assert lab.host.nodes == []
