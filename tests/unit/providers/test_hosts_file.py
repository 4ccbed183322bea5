"""A file of hosts, as people write it with any editor, and what must never reach ssh."""

from __future__ import annotations

import pytest

from stoker.errors import JobInvalid
from stoker.providers.ssh.hosts import SshHost, hosts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("# nothing\n\n", ()),
        ("\ufeffgpu1\r\ngpu2\r\n", (SshHost("gpu1"), SshHost("gpu2"))),
        ("\talice@big.example.org\t slots=4  # the old one", (SshHost("alice@big.example.org", 4),)),
        ("ssh://u@h:2222\n[::1]", (SshHost("ssh://u@h:2222"), SshHost("[::1]"))),
    ],
)
def test_hosts_are_read_in_their_order(text: str, found: tuple[SshHost, ...]) -> None:
    assert hosts(text) == found


@pytest.mark.parametrize(
    "line",
    [
        "-oProxyCommand=x",
        "a;b",
        "$(id)",
        "a b",
        "a slots=0",
        "a slots=10000",
        "a slots=x",
        "a slots=1 b",
        "a\0b",
        "gpu1",
    ],
)
def test_a_line_that_is_no_host_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        hosts(f"gpu1\n{line}\n")
    (problem,) = refused.value.problems
    assert "line 2" in problem.found
