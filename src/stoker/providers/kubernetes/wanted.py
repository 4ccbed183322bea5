"""What nodes are asked for with: settings of a cluster and needs of a job, as parts of a pod. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.node import Need

IMAGE = "docker.io/library/python:3.12"  # of jobs that name none; has a Python: the agent runs on it
GRACE_S = 60  # from SIGTERM to SIGKILL, where nothing shortens it
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_QUALIFIED = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL}"
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_SETTINGS = {  # each with what it may be, and words for that
    "context": (r".{1,250}", "a context of the kubeconfig"),
    "namespace": (r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "a namespace"),
    "queue": (_NAME, "a LocalQueue of Kueue"),
    "image": (r"[^\s]{1,500}", "a container image that has Python 3.10 or newer"),
    "selector": (rf"{_QUALIFIED}=(?:{_LABEL})?(?:,{_QUALIFIED}=(?:{_LABEL})?)*", "labels of nodes: `LABEL=VALUE,…`"),
    "tolerations": (
        rf"{_QUALIFIED}(?:=(?:{_LABEL})?)?(?::[A-Za-z]+)?(?:,{_QUALIFIED}(?:=(?:{_LABEL})?)?(?::[A-Za-z]+)?)*",
        "taints: `KEY=VALUE:EFFECT,…`, `KEY:EFFECT` or `KEY`",
    ),
    "volumes": (rf"{_NAME}:/[^:,\s]+(?:,{_NAME}:/[^:,\s]+)*", "claims and where they are mounted: `CLAIM:/PATH,…`"),
    "service_account": (_NAME, "a ServiceAccount, whose token the script can read"),
    "pull_secret": (_NAME, "a Secret with the login of the image's registry"),
    "priority_class": (_NAME, "a PriorityClass"),
    "gpu_resource": (_QUALIFIED, "the name of the GPU resource, such as `amd.com/gpu`"),
    "user": (r"[1-9][0-9]{0,8}", "the number of a user that is not root"),
    "grace": (r"[1-9][0-9]{0,4}", "seconds from SIGTERM to SIGKILL"),
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class PodWanted:
    """Of each node. Empty or zero: the cluster's own default."""

    context: str = ""
    namespace: str = ""
    queue: str = ""
    image: str = IMAGE
    given_image: bool = False  # by the job: its script uses what is in there
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    volumes: Sequence[tuple[str, str]] = ()  # claims, and their paths
    service_account: str = ""
    pull_secret: str = ""
    priority_class: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    models: Sequence[str] = ()  # of GPUs, as nodes are labelled; empty: any
    user: int = 0
    grace_s: int = GRACE_S
    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0

    @property
    def resources(self) -> dict[str, Any]:
        """A pod without memory of its own may use what its node has; CPUs are never throttled."""
        memory = {"memory": f"{self.memory_mb}M"} if self.memory_mb else {}
        limits = {**memory, **({self.gpu_resource: str(self.gpus)} if self.gpus else {})}
        return {"requests": {"cpu": str(self.cpus), **limits}, **({"limits": limits} if limits else {})}


def wanted(need: Need) -> PodWanted:
    """Raises JobInvalid with the setting, or the field of the job, that cannot be used."""
    given = dict(need.pool.settings) if need.pool else {}
    _check(given)
    if need.contained and not need.image:
        expected = "`environment.image`: push the image to a registry that the cluster reaches, and name it"
        raise JobInvalid([Problem("environment.dockerfile", "a Dockerfile: pods build no images", expected)])
    if need.image_login:
        expected = "nothing: make a Secret of type kubernetes.io/dockerconfigjson, and name it as `pull_secret`"
        raise JobInvalid([Problem("environment.login", f"`{need.image_login}`", expected)])
    return PodWanted(
        context=given.get("context", ""),
        namespace=given.get("namespace", ""),
        queue=given.get("queue", ""),
        image=need.image or given.get("image") or IMAGE,
        given_image=bool(need.image),
        selector=dict(_pairs(given.get("selector", ""))),
        tolerations=[_toleration(one) for one in _listed(given.get("tolerations", ""))],
        volumes=[(claim, path) for claim, _, path in (one.partition(":") for one in _listed(given.get("volumes", "")))],
        service_account=given.get("service_account", ""),
        pull_secret=given.get("pull_secret", ""),
        priority_class=given.get("priority_class", ""),
        gpu_resource=given.get("gpu_resource", "nvidia.com/gpu"),
        user=int(given.get("user", 0)),
        grace_s=int(given.get("grace", GRACE_S)),
        cpus=need.cpus or 1,
        gpus=need.gpus,
        memory_mb=int(need.memory_gb * 1000),
    )


def _check(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name not in _SETTINGS:
            expected = "a setting of Kubernetes: " + ", ".join(f"`{one}`" for one in _SETTINGS)
            raise JobInvalid([Problem(f"setting {name}", f"`{value}`", expected, nearest(name, _SETTINGS))])
        form, words = _SETTINGS[name]
        if not re.fullmatch(form, value):
            raise JobInvalid([Problem(f"setting {name}", f"`{value}`", words)])
    for one in _listed(given.get("tolerations", "")):
        effect = one.partition(":")[2]
        if effect and effect not in _EFFECTS:
            expected = "an effect: " + ", ".join(f"`{name}`" for name in _EFFECTS)
            raise JobInvalid([Problem("setting tolerations", f"`{one}`", expected, nearest(effect, _EFFECTS))])


def _listed(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (one.partition("=") for one in _listed(text))]


def _toleration(text: str) -> dict[str, str]:
    named, _, effect = text.partition(":")
    key, has_value, value = named.partition("=")
    found = {"key": key, "operator": "Equal" if has_value else "Exists"}
    return {**found, **({"value": value} if has_value else {}), **({"effect": effect} if effect else {})}


def models(labels: Sequence[str], gpu: str) -> list[str]:
    """Those of a node's label `nvidia.com/gpu.product` that are of this model: NVIDIA-A100-SXM4-80GB is an A100."""
    asked = re.split(r"[^a-z0-9]+", gpu.lower())
    return sorted({one for one in labels if set(asked) <= set(re.split(r"[^a-z0-9]+", one.lower()))})
