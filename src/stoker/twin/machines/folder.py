"""One machine on the host's disk: what it is, its disk, which certificates it trusts, and how to find it again after
the twin was killed."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from stoker.files.whole import write_whole
from stoker.twin.machines import MachineSpec


class MachineFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.order = path / "order.json"
        self.plan = path / "plan.json"
        self.power = path / "power.json"
        self.events = path / "events.json"
        self.lock = path / "power.lock"  # held by the machine itself while it is on or starting
        self.console = path / "console.log"
        self.disk = path / "disk"
        self.root = path / "disk" / "root"

    @classmethod
    def of(cls, yard: Path, name: str) -> MachineFolder:
        return cls(yard / quote(name, safe=""))

    @property
    def name(self) -> str:
        return unquote(self.path.name)

    def save_spec(self, spec: MachineSpec) -> None:
        """Written last: a folder without it is an incomplete machine, and is removed."""
        data = {
            "custom_data": base64.b64encode(spec.custom_data).decode(),
            "address": spec.address,
            "facts": dict(spec.facts),
            "network": spec.network,
            "outbound": spec.outbound,
        }
        write(self.path / "spec.json", data)

    def spec(self) -> MachineSpec | None:
        data = read(self.path / "spec.json")
        if not data:
            return None
        custom = base64.b64decode(data["custom_data"])
        outbound = data.get("outbound", True)
        return MachineSpec(self.name, custom, data["address"], data["facts"], data["network"], outbound)

    def remove(self) -> None:
        """Removes the specification first, so that the next twin completes an interrupted removal."""
        (self.path / "spec.json").unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def write(path: Path, data: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(data), mode=0o600)  # custom data may contain secrets


def read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


_INSIDE = "var/lib/twin/trusted.pem"
_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust(folder: MachineFolder, authority: Path | None, root: str) -> dict[str, str]:
    """Writes them to the disk, and returns the variables that name them, as paths below `root`."""
    if authority is None:
        return {}
    file = folder.root / _INSIDE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_hosts() + b"\n" + authority.read_bytes())
    return dict.fromkeys(_VARIABLES, f"{root}/{_INSIDE}")


def _hosts() -> bytes:
    for name in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes()
    return b""
