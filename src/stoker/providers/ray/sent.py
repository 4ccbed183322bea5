"""What is sent to a Ray cluster for one attempt, and the command line that begins there. Pure."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.model.node import NodeRequest
from stoker.stores.access import Access

PATIENCE_S = 900.0  # for an autoscaler to give nodes that the cluster does not have
# Read once and removed: the variables of a run contain secrets. Only Ray's memory has them, and only until then.
_BEGIN = """import sys, ray
from ray.experimental import internal_kv
ray.init(log_to_driver=False, logging_level="ERROR")
sent = internal_kv._internal_kv_get(NAME)
internal_kv._internal_kv_del(NAME)
if not sent: sys.exit("what was sent for this job is not there any more")
import io, zipfile
exec(compile(zipfile.ZipFile(io.BytesIO(sent)).read("driver.py"), "driver.py", "exec"))
"""


def address(name: str) -> str:
    """Under which Ray keeps what was sent as a package of this name."""
    return f"gcs://{name}"


def entrypoint(python: str, name: str) -> str:
    return f"exec {shlex.quote(python)} -c {shlex.quote(_BEGIN.replace('NAME', repr(address(name))))}"


def given(
    id: str, mark: str, stops: str, bundle: Mapping[str, float], requests: Sequence[NodeRequest]
) -> dict[str, Any]:
    """`stops` is in front of the key of a node that nobody needs any more, see `RayJobs.mark`."""
    return {
        "id": id,
        "stops": address(stops),
        "bundle": dict(bundle),
        "patience_s": PATIENCE_S,
        "nodes": [
            {
                "key": request.key,
                "mark": mark,
                "options": ["--store", request.store, "--orders", request.orders],
                "variables": request.variables,
                "stores": _folders(request),
            }
            for request in requests
        ],
    }


def _folders(request: NodeRequest) -> list[str]:
    """Stores that the node must have as a folder."""
    routes = Access.from_text(request.access).routes if request.access else ()
    return sorted({one.url for one in routes if one.url.startswith("file://") and one.writes})


def packed(given: Mapping[str, Any], agent: Path) -> bytes:
    here = Path(__file__).parent
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:
        file.writestr("given.json", json.dumps(given))
        file.writestr("driver.py", (here / "driver.py").read_bytes())
        file.writestr("guard.py", (here / "guard.py").read_bytes())
        file.writestr("agent.pyz", agent.read_bytes())
    return made.getvalue()
