"""What nodes are asked for with: settings of a cluster, needs of a job as resources of Ray, and what is sent to the
cluster for one attempt. Pure."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.node import Need, NodeRequest
from stoker.providers.ray.jobs import RayCluster
from stoker.stores.access import Access

SETTINGS = ("address", "python")
_ADDRESS = "the address of the cluster's dashboard, such as `http://head:8265`"
_SLIVER = 0.001  # of a resource that only says what a node is


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Where a cluster is. Empty: nobody has said so."""

    address: str = ""
    python: str = "python"  # the one of the head's Ray, as `ray job submit` takes it


def place(settings: Mapping[str, str], address: str) -> RayPlace:
    """`address` is what the surroundings say. Raises JobInvalid with the setting that cannot be used."""
    for name in settings:
        if name not in SETTINGS:
            expected = "a setting of Ray: " + ", ".join(f"`{one}`" for one in SETTINGS)
            raise JobInvalid([Problem(f"setting {name}", f"`{settings[name]}`", expected, nearest(name, SETTINGS))])
    given = settings.get("address", address)
    return RayPlace(_checked(given) if given else "", settings.get("python") or "python")


def _checked(given: str) -> str:
    try:
        found = urlsplit(given)
        usable = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        usable = False
    if not usable:
        other = (
            "; this one is for Ray's own programs" if given == "auto" or "://" not in given or "ray://" in given else ""
        )
        raise JobInvalid([Problem("address", f"`{given}`", f"{_ADDRESS}{other}")])
    return given.rstrip("/")


def bundle(need: Need) -> dict[str, float]:
    """Of each node: one CPU, if the job says nothing."""
    found: dict[str, float] = {"CPU": need.cpus or 1}
    if need.gpus:
        found["GPU"] = need.gpus
    if need.gpus and need.gpu:
        found[f"accelerator_type:{need.gpu}"] = _SLIVER
    if need.memory_gb:
        found["memory"] = int(need.memory_gb * 1e9)
    return found


def fitting(cluster: RayCluster, wanted: Mapping[str, float]) -> int:
    """How many of its nodes are that large, busy or not."""
    return sum(all(has.get(name, 0) >= amount for name, amount in wanted.items()) for has in cluster.nodes)


def check(cluster: RayCluster, need: Need) -> None:
    """Raises JobInvalid for what the cluster has never got, where no autoscaler makes more nodes."""
    if cluster.grows or not cluster.nodes:
        return
    wanted = bundle(need)
    for name, field, unit, scale in _FIELDS:
        most = max(has.get(name, 0) for has in cluster.nodes) / scale
        if wanted.get(name, 0) / scale > most:
            found = f"`{wanted[name] / scale:g}`"
            raise JobInvalid([Problem(field, found, f"at most {most:g}{unit}: no node of this Ray cluster has more")])
    if fitting(cluster, wanted) == 0 and need.gpu:
        raise JobInvalid([Problem("gpu", f"`{need.gpu}`", f"one of this Ray cluster: {_models(cluster)}")])
    if (room := fitting(cluster, wanted)) < need.nodes:
        expected = f"at most {room}: this Ray cluster has no more nodes that are large enough, and no autoscaler"
        raise JobInvalid([Problem("nodes", f"`{need.nodes}`", expected)])


_FIELDS = (("GPU", "gpus", "", 1), ("CPU", "cpus", "", 1), ("memory", "memory", " GB", 1e9))


def _models(cluster: RayCluster) -> str:
    prefix = "accelerator_type:"
    found = {name.removeprefix(prefix) for has in cluster.nodes for name in has if name.startswith(prefix)}
    return ", ".join(f"`{one}`" for one in sorted(found)) or "its nodes have none that Ray knows"


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
