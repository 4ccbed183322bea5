"""Rehearsals: the twin of a provider is another one, called `<provider>-twin`."""

from __future__ import annotations

_SUFFIX = "-twin"


def twin_of(provider: str) -> str:
    return provider if is_twin(provider) else f"{provider}{_SUFFIX}"


def is_twin(provider: str) -> bool:
    return provider.endswith(_SUFFIX)


def original(twin: str) -> str:
    return twin.removesuffix(_SUFFIX)
