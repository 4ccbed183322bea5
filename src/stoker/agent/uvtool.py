"""uv, for a machine that lacks it: from where the submission says, and never another than it says."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from urllib.request import Request, urlopen

_WITHIN_S = 60.0
_MOST_BYTES = 200_000_000


def bring_uv(wheels: Mapping[str, str], place: Path, tell: Callable[[str, str], None]) -> str | None:
    """Its path. None where it cannot be had, which is told."""
    url, _, sha256 = wheels.get(os.uname().machine, "").partition("#sha256=")
    if not url.startswith("https://") or len(sha256) != 64:
        return None
    there = place / f"uv-{sha256[:16]}"
    if there.exists():
        return str(there)
    try:
        with urlopen(Request(url), timeout=_WITHIN_S) as answer:
            data = answer.read(_MOST_BYTES)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise OSError("it came damaged")
        place.mkdir(parents=True, exist_ok=True)
        part = there.with_name(f"{there.name}.{os.getpid()}.part")
        with zipfile.ZipFile(BytesIO(data)) as wheel:
            name = next(one for one in wheel.namelist() if one.endswith("/scripts/uv"))
            part.write_bytes(wheel.read(name))
        part.chmod(0o755)
        part.replace(there)
    except (OSError, ValueError, StopIteration, HTTPException, zipfile.BadZipFile) as error:
        tell("environment", f"uv could not be brought to this machine: {error}")
        return None
    return str(there)
