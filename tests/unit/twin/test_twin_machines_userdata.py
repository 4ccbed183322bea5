"""Custom data becomes a plan: files, users and scripts; unsupported parts are reported as problems."""

import base64
import gzip
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from stoker.twin.machines.metadata import plan

CONFIG = """#cloud-config
write_files:
- path: /opt/stoker/start.sh
  permissions: '0755'
  content: |
    echo hello
runcmd:
- cd /opt/stoker
- [./start.sh, a b]
"""


def content(file: dict[str, str]) -> bytes:
    return base64.b64decode(file["content"])


def test_commands_become_one_script_so_that_a_folder_changed_once_stays_changed() -> None:
    assert plan(CONFIG.encode())["scripts"] == {"runcmd": "#!/bin/sh\ncd /opt/stoker\n./start.sh 'a b'\n"}


def test_a_file_keeps_its_content_mode_and_owner() -> None:
    (file,) = plan(CONFIG.encode())["files"]
    assert (file["path"], file["mode"], file["owner"]) == ("/opt/stoker/start.sh", "0755", "root:root")
    assert content(file) == b"echo hello\n"


def test_a_file_may_be_encoded_and_compressed() -> None:
    packed = base64.b64encode(gzip.compress(b"\0\1agent")).decode()
    text = f"#cloud-config\nwrite_files:\n- {{path: /a, encoding: gz+b64, content: {packed}}}\n"
    assert content(plan(text.encode())["files"][0]) == b"\0\1agent"


def test_binary_content_of_yaml_is_taken_as_it_is() -> None:
    packed = base64.b64encode(bytes(range(256))).decode()
    text = f"#cloud-config\nwrite_files:\n- {{path: /a, content: !!binary {packed}}}\n"
    assert content(plan(text.encode())["files"][0]) == bytes(range(256))


def test_a_script_is_run_as_it_is() -> None:
    assert plan(b"#!/usr/bin/python3\nprint(1)\n")["scripts"] == {"part-001": "#!/usr/bin/python3\nprint(1)\n"}


def test_parts_of_a_message_and_compressed_data_are_understood() -> None:
    message = MIMEMultipart()
    message.attach(MIMEText(CONFIG, "cloud-config"))
    message.attach(MIMEText("#!/bin/sh\ntrue\n", "x-shellscript"))
    made = plan(gzip.compress(message.as_bytes()))
    assert sorted(made["scripts"]) == ["part-002", "runcmd"]
    assert made["files"][0]["path"] == "/opt/stoker/start.sh"


def test_keys_without_a_user_are_the_administrators() -> None:
    made = plan(b"#cloud-config\nssh_authorized_keys: [ssh-ed25519 AAAA me]\n")
    assert made["users"] == [
        {"name": "azureuser", "keys": ["ssh-ed25519 AAAA me"], "shell": "/bin/bash", "sudo": True},
    ]


def test_bad_custom_data_is_a_problem_and_not_an_exception() -> None:
    assert plan(b"hello\n")["problems"] == ["custom data starts with 'hello', which is not a known format"]
    assert "while parsing" in plan(b"#cloud-config\n{{{")["problems"][0]
    assert plan(b"#cloud-config\n- a\n")["problems"] == ["cloud-config: found list, expected keys and values"]
    assert plan(b"#cloud-config\napt: {}\n")["problems"] == ["cloud-config: `apt` is not supported"]
    assert plan(b"#cloud-config\nwrite_files: [{content: x}]\n")["problems"] == ["custom data: 'path'"]
    assert plan(b"")["problems"] == []
