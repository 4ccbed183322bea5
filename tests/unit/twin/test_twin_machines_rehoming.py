"""Paths of a machine without isolation are moved below its folder, and those of the host are not."""

import base64

import pytest

from stoker.twin.machines.metadata import plan
from stoker.twin.machines.opening import OWN, rehomed, rehomed_plan

CONFIG = b"""#cloud-config
write_files:
- {path: /opt/stoker/agent.sh, content: "exec python3 /opt/stoker/a.pyz --log /var/log/a"}
- {path: /etc/stoker.env, content: "FOLDER=/opt/stoker"}
- {path: /opt/stoker/a.pyz, content: !!binary /w==}
runcmd: [". /etc/stoker.env; cat /etc/os-release; sh /opt/stoker/agent.sh"]
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cat /var/lib/x", "cat /m/var/lib/x"),
        ("A=/root;B=/run/x", "A=/m/root;B=/m/run/x"),
        ("ls /var/library /host/var/lib", "ls /var/library /host/var/lib"),
        ("/m/root /etc/systemd/system/a.service", "/m/root /m/etc/systemd/system/a.service"),
        ("http://h/root", "http://h/root"),
        ("mv /usr/local/sbin/nvidia-smi.part /usr/local/sbin", "mv /m/usr/local/sbin/nvidia-smi.part /usr/local/sbin"),
        ("curl http://169.254.169.254/metadata", "curl http://127.0.0.1:7/metadata"),
    ],
)
def test_whole_names_alone_are_moved(before: str, after: str) -> None:
    assert rehomed(before, OWN, "/m", "http://127.0.0.1:7") == after


def test_where_a_plan_writes_is_the_machines_and_the_rest_is_the_hosts() -> None:
    moved = rehomed_plan(plan(CONFIG), "/m", "http://127.0.0.1:7")
    assert moved["scripts"]["runcmd"] == (
        "#!/bin/sh\n. /m/etc/stoker.env; cat /etc/os-release; sh /m/opt/stoker/agent.sh\n"
    )
    contents = [base64.b64decode(file["content"]) for file in moved["files"]]
    assert contents == [b"exec python3 /m/opt/stoker/a.pyz --log /m/var/log/a", b"FOLDER=/m/opt/stoker", b"\xff"]
