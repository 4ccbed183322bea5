"""What is sent to Azure ML and read from it, as data: jobs with their tags, clusters. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.node import NodeRequest, NodeState, Offer, Pool

TAG, KEY, SERVER = "stoker", "stoker-key", "stoker-server"  # of a job: that it is a node, which, and whose
USD, LEASE, BEGAN = "stoker-usd-per-hour", "stoker-lease", "stoker-began"
OVER = ("Completed", "Failed", "Canceled")
ENDED = (*OVER, "NotResponding")  # which may still work, and comes back at times
STATES = {
    "Running": NodeState.UP,
    "Finalizing": NodeState.UP,
    "CancelRequested": NodeState.UP,
    **dict.fromkeys(ENDED, NodeState.GONE),
}
SETTINGS = ("compute",)
_LONGEST = "P7D"  # of a job that nobody stops: its agent ends it with its lease, long before


@dataclass(frozen=True, slots=True)
class ClusterSight:
    """A compute cluster as the workspace has it. `error` says why it has no nodes for what waits."""

    size: str
    region: str
    low_priority: bool
    most: int
    idle_s: float
    error: str = ""


def settings(pool: Pool | None) -> dict[str, str]:
    """Of a cluster of Stoker's. Raises JobInvalid for those that this provider does not know."""
    given = dict(pool.settings) if pool else {}
    for name in given:
        if name not in SETTINGS:
            expected = "a setting of Azure ML: " + ", ".join(f"`{one}`" for one in SETTINGS)
            raise JobInvalid([Problem(f"setting {name}", f"`{given[name]}`", expected, nearest(name, SETTINGS))])
    return given


def cluster(pool: Pool, offer: Offer, region: str) -> dict[str, Any]:
    scale = {
        "minNodeCount": 0,
        "maxNodeCount": pool.most_nodes,
        "nodeIdleTimeBeforeScaleDown": f"PT{max(int(pool.idle_s), 1)}S",
    }
    priority = "LowPriority" if offer.spot else "Dedicated"
    inner = {"vmSize": offer.size.upper(), "vmPriority": priority, "scaleSettings": scale, "osType": "Linux"}
    return {"location": region, "properties": {"computeType": "AmlCompute", "properties": inner}}


def read_cluster(found: Mapping[str, Any], seconds: float) -> ClusterSight:
    outer = found["properties"]
    inner = outer["properties"]
    errors = [str((one.get("error") or one).get("message", "")) for one in inner.get("errors") or ()]
    return ClusterSight(
        size=str(inner["vmSize"]),
        region=str(found.get("location") or outer.get("computeLocation")),
        low_priority=inner.get("vmPriority") == "LowPriority",
        most=int(inner["scaleSettings"]["maxNodeCount"]),
        idle_s=seconds,
        error=errors[0] if errors else "",
    )


def tags(mark: str, request: NodeRequest, usd: Decimal, lease: str) -> dict[str, str]:
    named = {f"stoker-{name}": value for name, value in request.labels.items() if value}
    own = {TAG: "node", KEY: request.key, SERVER: mark, USD: str(usd), LEASE: lease}
    return {name: value[:250] for name, value in {**named, **own}.items()}


@dataclass(frozen=True, slots=True)
class NodeTags:
    """Tags of a job that is a node. People can change and copy them in the studio."""

    key: str
    server: str
    usd: Decimal
    lease: datetime | None
    began: bool


def read_tags(job: Mapping[str, Any]) -> NodeTags | None:
    """None: the job is no node, such as a copy of one, which has its tags."""
    told = job["properties"].get("tags") or {}
    key, server = str(told.get(KEY, "")), str(told.get(SERVER, ""))
    if told.get(TAG) != "node" or not key or job["name"] != job_name(server, key):
        return None
    try:
        lease = datetime.fromisoformat(told[LEASE]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        lease = None
    try:
        usd = Decimal(told[USD])
    except (KeyError, TypeError, ValueError, ArithmeticError):
        usd = Decimal(0)
    return NodeTags(key, server, usd if usd.is_finite() else Decimal(0), lease, told.get(BEGAN) == "yes")


def job_name(server: str, key: str) -> str:
    return f"stoker-{server}-{re.sub(r'[^A-Za-z0-9_-]', '-', key)}"


def released(told: Mapping[str, str]) -> dict[str, str]:
    """Without what marks it as a node of ours. The run's name stays, for people."""
    return {name: value for name, value in told.items() if name not in (TAG, LEASE, BEGAN)}


# The key comes to the agent's loader through a pipe, and is in the environment of nothing that follows.
_COMMAND = """set -e
python=$(command -v python3 || command -v python)
given=$(printf '%s\\n' "$STOKER_KEY" "$MLFLOW_TRACKING_URI" "$AZUREML_RUN_ID" "$MLFLOW_TRACKING_TOKEN")
unset STOKER_KEY
printf '%s\\n' "$given" | exec "$python" -I -S -c 'import sys
sys.path.insert(0, sys.argv[1] + "/agent.pyz")
if sys.version_info < (3, 11):
    from stoker.agent.older import complete
    complete()
from stoker.providers.azureml.node.starting import main
from stoker.stores.unsealing import unseal
raise SystemExit(main(sys.argv[1], sys.argv[2], unseal))' ${{inputs.stoker}} NAME"""


def job(
    name: str, request: NodeRequest, compute: str, environment: str, folder: str, key: str, told: Mapping[str, str]
) -> dict[str, Any]:
    """The secrets of the run are sealed in a blob of the workspace, and `key`, which opens it, is here: whoever reads
    only one of them learns nothing."""
    run = request.labels.get("run") or "stoker"
    uri = f"azureml://datastores/workspaceblobstore/paths/{folder}/"
    return {
        "properties": {
            "jobType": "Command",
            "displayName": f"{run} ({request.key})",
            "experimentName": run.rpartition("-")[0] or run,
            "command": _COMMAND.replace("NAME", name),
            "computeId": compute,
            "environmentId": environment,
            "environmentVariables": {"STOKER_KEY": key},
            "inputs": {"stoker": {"jobInputType": "uri_folder", "mode": "Download", "uri": uri}},
            "resources": {"instanceCount": 1},
            "limits": {"jobLimitsType": "Command", "timeout": _LONGEST},
            "tags": dict(told),
        }
    }
