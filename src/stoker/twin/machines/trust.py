"""Whose certificates a machine trusts: those that the host does, and the twin's own, as if it were a public one."""

from __future__ import annotations

import ssl
from pathlib import Path

from stoker.twin.machines.folder import MachineFolder

_INSIDE = "var/lib/twin/trusted.pem"
_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust(folder: MachineFolder, authority: Path | None, root: str) -> dict[str, str]:
    """Puts them on the disk, and gives the variables that point there, as paths below `root`."""
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
