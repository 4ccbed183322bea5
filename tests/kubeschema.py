"""The official schema of Kubernetes, as its own Python client has it: unknown fields and wrong types are refused."""

from __future__ import annotations

from typing import Any

from kubernetes.client import models
from pydantic import ValidationError

_MODELS: dict[str, Any] = {
    "jobs": models.V1Job,
    "pods": models.V1Pod,
    "secrets": models.V1Secret,
    "services": models.V1Service,
    "events": models.CoreV1Event,
    "DeleteOptions": models.V1DeleteOptions,
}


def check(kind: str, one: dict[str, Any]) -> None:
    """Raises ValueError."""
    try:
        _MODELS[kind].model_validate(one)
    except ValidationError as error:
        raise ValueError(str(error)) from None
