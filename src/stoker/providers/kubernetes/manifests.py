"""What is created in a cluster for one attempt, as data: a Job, which owns a Secret and a Service. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.model.node import NodeRequest
from stoker.providers.kubernetes.wanted import PodWanted

SERVER, ATTEMPT = "stoker.dev/server", "stoker.dev/attempt"  # labels: whose it is, and which
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE = "kueue.x-k8s.io/queue-name"
TTL_S = 3600  # an ended job that no server removes
NODE = "stoker.providers.kubernetes.node"  # shipped with the agent
MOST_BYTES = 1_000_000  # of a Secret, whose limit is 1 MiB
_TOP, _GIVEN, _HANDED = "/stoker", "/stoker-given", "/stoker-handed"
# `sh` finds the Python of the image. What fails here is the message of the container.
_SHELL = (
    "python=$(command -v python3 || command -v python) || "
    '{ echo "the image has no Python, which the agent requires" >&2; exit 127; }; exec "$python" -I -S -c "$0"'
)
# Alone sees the Secret: what it hands over is in memory, and is removed before the script starts.
_UNPACK = f"""import json, lzma, os, sys
if sys.version_info < (3, 10):
    sys.exit("the image has Python %d.%d, and the agent requires 3.10 or newer" % sys.version_info[:2])
with open("{_GIVEN}/agent.xz", "rb") as packed, open("{_TOP}/agent.pyz", "wb") as agent:
    agent.write(lzma.decompress(packed.read()))
with open("{_GIVEN}/nodes.json", "rb") as file:
    node = json.load(file)[int(os.environ["JOB_COMPLETION_INDEX"])]
for place in node["stores"]:
    if not os.path.isdir(place):
        sys.exit("the folder of the store, %s, is not in the pod: mount its claim there" % place)
os.makedirs("{_TOP}/home", exist_ok=True)
with os.fdopen(os.open("{_HANDED}/.stoker-given", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
    json.dump(node, file)
"""
_BEGIN = f"""import json, os, sys
with open("/dev/shm/.stoker-given") as file:
    node = json.load(file)
os.unlink("/dev/shm/.stoker-given")
variables = os.memfd_create("variables", 0)
os.write(variables, json.dumps(node["variables"]).encode())
os.environ["STOKER_NODE_KEY"] = node["key"]
words = [sys.executable, "-I", "-S", "{_TOP}/agent.pyz", "run", *node["options"], "--variables-fd", str(variables)]
os.execv(sys.executable, words)
"""


def name(mark: str, key: str) -> str:
    """Of everything of an attempt. The host names of its pods have an index behind it, and at most 63 letters."""
    plain = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    if plain != key or len(plain) > 40:
        plain = f"{plain[:30].strip('-')}-{hashlib.sha256(key.encode()).hexdigest()[:8]}".strip("-")
    return f"stoker-{mark[:6]}-{plain}"


def job(name: str, mark: str, wanted: PodWanted, requests: Sequence[NodeRequest], lease_s: float) -> dict[str, Any]:
    """Its nodes end each by itself, and none is started a second time."""
    labels = {SERVER: mark, ATTEMPT: name, "app.kubernetes.io/managed-by": "stoker"}
    said = {f"stoker.dev/{what}": value for what, value in sorted(requests[0].labels.items()) if value}
    once = {"backoffLimitPerIndex": 0} if len(requests) > 1 else {"backoffLimit": 0}
    queue = {QUEUE: wanted.queue} if wanted.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **queue}, "annotations": said},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(requests),
            "parallelism": len(requests),
            **once,
            "podReplacementPolicy": "Failed",
            "suspend": bool(wanted.queue),
            "activeDeadlineSeconds": max(int(lease_s), 1),
            "ttlSecondsAfterFinished": TTL_S,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {**said, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
                },
                "spec": _pod(name, wanted, len(requests)),
            },
        },
    }


def _pod(name: str, wanted: PodWanted, nodes: int) -> dict[str, Any]:
    claims = [(f"claim-{number}", claim, path) for number, (claim, path) in enumerate(wanted.volumes)]
    scratch = [{"name": "scratch", "mountPath": _TOP}, *({"name": one, "mountPath": path} for one, _, path in claims)]
    env = [{"name": "HOME", "value": f"{_TOP}/home"}] if wanted.user else []
    both = {"image": wanted.image, "env": env, "securityContext": _limited(wanted)}
    given = {"name": "given", "mountPath": _GIVEN, "readOnly": True}
    shm = {"medium": "Memory", **({"sizeLimit": f"{max(wanted.memory_mb // 2, 1)}M"} if wanted.memory_mb else {})}
    named = {
        "serviceAccountName": wanted.service_account,
        "priorityClassName": wanted.priority_class,
        "nodeSelector": dict(wanted.selector),
        "tolerations": [dict(one) for one in wanted.tolerations],
        "imagePullSecrets": [{"name": wanted.pull_secret}] if wanted.pull_secret else [],
        "affinity": _affinity(wanted),
        "topologySpreadConstraints": _spread(name) if nodes > 1 else [],
        "subdomain": name if nodes > 1 else "",
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": wanted.grace_s,
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(wanted.service_account),
        "securityContext": _of_user(wanted),
        "initContainers": [
            {
                **both,
                "name": "unpack",
                "command": ["/bin/sh", "-c", _SHELL, _UNPACK],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "256M"}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [given, {"name": "memory", "mountPath": _HANDED}, *scratch],
            }
        ],
        "containers": [
            {
                **both,
                "name": "agent",
                "command": ["/bin/sh", "-c", _SHELL, _BEGIN],
                "resources": wanted.resources,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}, *scratch],
            }
        ],
        "volumes": [
            {"name": "given", "secret": {"secretName": name, "defaultMode": 0o444}},
            {"name": "memory", "emptyDir": shm},
            {"name": "scratch", "emptyDir": {}},
            *({"name": one, "persistentVolumeClaim": {"claimName": claim}} for one, claim, _ in claims),
        ],
        **{field: value for field, value in named.items() if value},
    }


def _limited(wanted: PodWanted) -> dict[str, Any]:
    """What the pod security standard `restricted` requires of a container; root keeps what it may do in its own."""
    drops = {"capabilities": {"drop": ["ALL"]}} if wanted.user else {}
    return {"allowPrivilegeEscalation": False, **drops}


def _of_user(wanted: PodWanted) -> dict[str, Any]:
    user = wanted.user
    own = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user} if user else {}
    return {"seccompProfile": {"type": "RuntimeDefault"}, **own}


def _affinity(wanted: PodWanted) -> dict[str, Any]:
    if not wanted.models:
        return {}
    products = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(wanted.models)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [products]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _spread(name: str) -> list[dict[str, Any]]:
    """On different machines where there are enough."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {ATTEMPT: name}},
        }
    ]


def secret(name: str, mark: str, uid: str, nodes: Sequence[Mapping[str, Any]], agent: Path) -> dict[str, Any]:
    """What the agents are started with, and they themselves: in one object, which goes with its Job."""
    files = {"nodes.json": json.dumps(list(nodes)).encode(), "agent.xz": _compressed(agent)}
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise StokerError(f"a Secret with {size} bytes is too large for Kubernetes: it has the agent and `secrets`")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, mark, uid),
        "type": "Opaque",
        "immutable": True,
        "data": {one: base64.b64encode(data).decode() for one, data in files.items()},
    }


def service(name: str, mark: str, uid: str) -> dict[str, Any]:
    """Without an address of its own: it gives the pods of a gang their names, also before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {ATTEMPT: name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _owned(name, mark, uid), "spec": spec}


def _owned(name: str, mark: str, uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "blockOwnerDeletion": True}
    labels = {SERVER: mark, ATTEMPT: name, "app.kubernetes.io/managed-by": "stoker"}
    return {"name": name, "labels": labels, "ownerReferences": [owner]}


def node(request: NodeRequest, wanted: PodWanted, stores: Sequence[str]) -> dict[str, Any]:
    """What the agent of one pod is started with. `stores` are folders that must be there."""
    options = {
        "--store": request.store,
        "--orders": request.orders,
        "--folder": f"{_TOP}/node",
        "--environments": f"{_TOP}/environments",
        "--cloud": NODE,
        "--events": str(wanted.grace_s),
        **({"--within-image": "1"} if wanted.given_image else {}),
    }
    words = [word for pair in options.items() for word in pair]
    return {"key": request.key, "options": words, "variables": request.variables, "stores": list(stores)}


@lru_cache(maxsize=2)
def _compressed(agent: Path) -> bytes:
    """Without bytecode, whose Python the pods need not have: half a megabyte."""
    plain = agent.with_suffix(".part")
    with zipfile.ZipFile(agent) as packed, zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as smaller:
        for one in packed.infolist():
            if not one.filename.endswith(".pyc"):
                smaller.writestr(zipfile.ZipInfo(one.filename), packed.read(one))
    try:
        return lzma.compress(plain.read_bytes(), preset=9)
    finally:
        plain.unlink()
