"""The twin's own certificate authority and certificate, created once by OpenSSL: clients require TLS."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import TwinFailed

_DAYS = "3650"
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"


@dataclass(frozen=True, slots=True)
class Certificate:
    authority: Path  # what clients have to trust
    chain: Path
    key: Path


def certificate(folder: Path) -> Certificate:
    """The one in this folder, created if missing. An incomplete set is created again."""
    made = Certificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    if all(path.exists() for path in (made.authority, made.chain, made.key)):
        return made
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key = folder / "ca.key"
    request, extra = folder / "server.csr", folder / "server.ext"
    extra.write_text(f"{_NAMES}\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS),
        *("-subj", "/CN=Stoker twin authority", "-keyout", str(authority_key), "-out", str(made.authority)),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=Stoker twin"),
        *("-keyout", str(made.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(made.authority), "-CAkey", str(authority_key)),
        *("-CAcreateserial", "-days", _DAYS, "-extfile", str(extra), "-out", str(made.chain)),
    )
    for path in (authority_key, request, extra):  # nothing else is ever signed with it
        path.unlink()
    made.key.chmod(0o600)
    return made


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    except FileNotFoundError:
        raise TwinFailed(
            "the twin requires the program `openssl` for its certificate, but it was not found",
            hint="apt-get install openssl",
        ) from None
    except subprocess.CalledProcessError as error:
        raise TwinFailed(f"openssl {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()}") from error
