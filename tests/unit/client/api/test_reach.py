"""The arguments of OpenSSH's client, Azure's report of a command, and which ports a firewall opens."""

from pathlib import Path
from typing import Any

import pytest

from stoker.client.api.reach import Call, Forward, read_forward, ssh_words
from stoker.errors import BadInput
from stoker.model.node import Entrance
from stoker.providers.azure import streams
from stoker.twin.machines.outward import Opening, open_ports
from stoker.twin.state import Resource

THERE = Entrance(("sudo", "-n", "enter", "--"), address="20.1.2.3", user="stoker")
HOSTS = Path("/home/me/.stoker/ssh/known_hosts")


@pytest.mark.parametrize(
    ("text", "forward"),
    [
        ("6006:localhost:6006", Forward(6006, "localhost", 6006)),
        ("8080:10.0.0.5:80", Forward(8080, "10.0.0.5", 80)),
        ("127.0.0.2:8080:localhost:80", Forward(8080, "localhost", 80, "127.0.0.2")),
        ("6006", Forward(6006, "localhost", 6006)),
    ],
)
def test_forwards_are_written_as_for_ssh_and_a_port_alone_is_enough(text: str, forward: Forward) -> None:
    assert read_forward(text) == forward


@pytest.mark.parametrize("text", ["", "x", "1:2", "0:localhost:80", "70000:localhost:80", "80:local host:80", "-N"])
def test_what_is_no_forward_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="expected PORT:HOST:PORT"):
        read_forward(text)


def test_a_command_with_spaces_reaches_the_node_as_the_words_it_was() -> None:
    words = ssh_words(THERE, "k-1", Call(("sh", "-c", "echo 'a b'"), terminal=False), HOSTS)
    assert words[0] == "ssh"
    assert words[-3:] == ["-T", "stoker@20.1.2.3", "sudo -n enter -- sh -c 'echo '\"'\"'a b'\"'\"''"]


def test_each_node_is_known_by_its_own_name_since_addresses_are_given_again() -> None:
    words = ssh_words(THERE, "k-1", Call(), HOSTS)
    assert "HostKeyAlias=stoker-k-1" in words
    assert f"UserKnownHostsFile={HOSTS}" in words
    assert "StrictHostKeyChecking=accept-new" in words


def test_ports_alone_start_no_shell() -> None:
    words = ssh_words(THERE, "k-1", Call(forwards=(Forward(6006, "localhost", 6006),), only_forward=True), HOSTS)
    assert words[-4:] == ["-L", "6006:localhost:6006", "-N", "stoker@20.1.2.3"]


def test_what_azure_says_of_a_command_is_taken_apart() -> None:
    assert streams("Enable succeeded: \n[stdout]\none\ntwo\n\n[stderr]\noops\n") == ("one\ntwo\n", "oops\n")
    assert streams("Enable failed: it is off") == ("", "")


def firewall(*rules: dict[str, Any]) -> Resource:
    usual = {"direction": "Inbound", "access": "Allow", "protocol": "Tcp"}
    made = [{"name": f"r{n}", "properties": {**usual, "priority": 100 + n, **rule}} for n, rule in enumerate(rules)]
    id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkSecurityGroups/f"
    return Resource(id, {"properties": {"securityRules": made}}, 0.0)


def test_a_port_is_open_where_every_firewall_lets_it_in() -> None:
    ssh, web = {"destinationPortRange": "22"}, {"destinationPortRanges": ["80", "8000-8002"]}
    assert open_ports([]) == []
    assert open_ports([firewall()]) == []
    assert open_ports([firewall(ssh, web)]) == [22, 80, 8000, 8001, 8002]
    assert open_ports([firewall(ssh), firewall(web)]) == []
    assert open_ports([firewall(ssh), firewall({"destinationPortRange": "*"})]) == [22]


def test_a_rule_lets_in_the_addresses_that_it_names_and_nobody_else() -> None:
    named = {"destinationPortRange": "22", "sourceAddressPrefixes": ["127.0.0.1", "10.1.0.0/16"]}
    opening = Opening("box", (firewall(named),))
    assert [opening.admits(22, source) for source in ("127.0.0.1", "10.1.2.3", "127.0.0.2")] == [True, True, False]
    everybody = Opening("box", (firewall({"destinationPortRange": "22", "sourceAddressPrefix": "*"}),))
    assert everybody.admits(22, "127.0.0.2")


def test_the_first_rule_that_speaks_of_a_port_decides() -> None:
    deny, allow = {"destinationPortRange": "*", "access": "Deny"}, {"destinationPortRange": "22"}
    assert open_ports([firewall(deny, allow)]) == []
    assert open_ports([firewall(allow, deny)]) == [22]
    assert open_ports([firewall({**allow, "direction": "Outbound"}, {**allow, "protocol": "Udp"})]) == []
