"""A VM's custom data as a plan that a machine's cloud-init executes. Pure.

Supported: `#cloud-config` with `bootcmd`, `write_files`, `users`, `ssh_authorized_keys` and `runcmd`; `#!` scripts;
several of them as MIME parts; all of it gzipped. Unsupported parts are a problem in the plan, not an exception: a real
VM boots with bad custom data, too.
"""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import shlex
from collections.abc import Mapping
from typing import Any

Plan = dict[str, Any]

_KNOWN = {"bootcmd", "write_files", "users", "ssh_authorized_keys", "runcmd", "hostname", "output", "final_message"}
_ADMINISTRATOR = "azureuser"  # whose keys they are where `users` names nobody


def plan(custom_data: bytes) -> Plan:
    raw = base64.b64encode(custom_data).decode()  # kept on the disk, as on a real VM
    made: Plan = {"bootcmd": "", "files": [], "users": [], "scripts": {}, "problems": [], "raw": raw}
    try:
        _add_part(made, gzip.decompress(custom_data) if custom_data[:2] == b"\x1f\x8b" else custom_data)
    except (ValueError, OSError, EOFError, TypeError, AttributeError, KeyError) as error:
        made["problems"].append(f"custom data: {error}")
    return made


def _add_part(made: Plan, data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    if text.startswith("#cloud-config"):
        _add_config(made, text)
    elif text.startswith("#!"):
        made["scripts"][f"part-{len(made['scripts']) + 1:03}"] = text
    elif text.lower().startswith(("content-type: multipart", "mime-version:", "from nobody")):
        for part in email.message_from_bytes(data).walk():
            if not part.is_multipart():
                _add_part(made, part.get_payload(decode=True))  # type: ignore[arg-type]  # bytes of one part
    elif text.strip():
        made["problems"].append(f"custom data starts with {text.splitlines()[0][:40]!r}, which is not a known format")


def _add_config(made: Plan, text: str) -> None:
    import yaml  # here, because it is slow to import and most of Stoker does not need it

    try:
        config = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        made["problems"].append(f"cloud-config: {' '.join(str(error).split())}")
        return
    if not isinstance(config, dict):
        made["problems"].append(f"cloud-config: found {type(config).__name__}, expected keys and values")
        return
    made["problems"] += [f"cloud-config: `{key}` is not supported" for key in sorted(config.keys() - _KNOWN)]
    if config.get("bootcmd"):
        made["bootcmd"] = _script(config["bootcmd"])
    made["files"] += [_file(entry) for entry in config.get("write_files") or []]
    made["users"] += _users(config)
    if config.get("runcmd"):
        made["scripts"]["runcmd"] = _script(config["runcmd"])


def _script(commands: list[Any]) -> str:
    """One shell script, as in cloud-init: `cd` in one entry affects the next, and a failure stops nothing."""
    lines = [shlex.join(map(str, entry)) if isinstance(entry, list) else str(entry) for entry in commands]
    return "#!/bin/sh\n" + "".join(f"{line}\n" for line in lines)


def _file(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": str(entry["path"]),
        "content": base64.b64encode(_content(entry)).decode(),
        "mode": str(entry.get("permissions") or "0644"),
        "owner": str(entry.get("owner") or "root:root"),
        "append": bool(entry.get("append")),
    }


def _content(entry: Mapping[str, Any]) -> bytes:
    content = entry.get("content", b"")
    data = content if isinstance(content, bytes) else str(content).encode()
    encoding = str(entry.get("encoding") or "")
    if "b64" in encoding or "base64" in encoding:
        try:
            data = base64.b64decode(data)
        except binascii.Error as error:
            raise ValueError(f"{entry['path']}: {error}") from error
    return gzip.decompress(data) if encoding.startswith(("gz", "gzip")) else data


def _users(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    users = [_user(entry) for entry in config.get("users") or [] if isinstance(entry, dict)]
    keys = [str(key) for key in config.get("ssh_authorized_keys") or []]
    if keys and not users:
        users = [_user({"name": _ADMINISTRATOR, "sudo": True})]
    return [{**user, "keys": user["keys"] + keys} for user in users]


def _user(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(entry["name"]),
        "keys": [str(key) for key in entry.get("ssh_authorized_keys") or []],
        "shell": str(entry.get("shell") or "/bin/bash"),
        "sudo": bool(entry.get("sudo")),
    }
