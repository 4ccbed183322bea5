"""Which container engines a host has: its agent looks there, before a run is sent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stoker.containers import EngineSight, best, troubles
from stoker.errors import ProviderFailed
from stoker.model import wire
from stoker.providers.ssh.link import HostLink, uploaded

_WITHIN_S = 60.0


def engines_of(link: HostLink, agent: Path, image: str = "") -> list[EngineSight]:
    """The best one first. Raises ProviderFailed where the host does not answer."""
    uploaded(link, agent)
    said = link.ask("engines", _WITHIN_S, agent=agent.name, image=image)["said"]
    try:
        return list(wire.load(tuple[EngineSight, ...], said.encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderFailed(f"host `{link.host}`: its answer cannot be read: {error}") from None


def require_engine(link: HostLink, agent: Path) -> None:
    """Raises ProviderFailed with the reason where the host has none that can be used."""
    seen = engines_of(link, agent)
    if not seen or seen[0].trouble:
        why, hint = troubles(seen)
        raise ProviderFailed(f"host `{link.host}`: {why}", hint=hint)


def best_of(answers: Iterable[list[EngineSight] | None]) -> list[EngineSight] | None:
    """Of the host that suits best: a node is only started where there is an engine. None: no host answered."""
    known = [one for one in answers if one is not None]
    return min(known, key=lambda seen: best(seen[0]) if seen else (True, True)) if known else None
