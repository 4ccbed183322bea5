"""The twin's memory: one private file, replaced as a whole, so that a twin that was killed goes on where it was."""

from __future__ import annotations

import secrets
from pathlib import Path

from stoker.errors import TwinFailed
from stoker.files.whole import write_whole
from stoker.model import wire
from stoker.twin.state import Cloud, Principal, name_uuid
from stoker.twin.time.weather import Weather


def load(path: Path) -> Cloud | None:
    """The cloud as it was last saved; None where there is none yet."""
    try:
        return wire.load(Cloud, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TwinFailed(
            f"the twin's memory {path} cannot be read: {error}", hint="begin a new one with `stoker twin down --forget`"
        ) from error


def save(path: Path, cloud: Cloud) -> None:
    """Survives a kill of the twin at any moment; not made to survive a power failure of this computer."""
    write_whole(path, wire.dump(cloud), mode=0o600)


def fresh(weather: Weather) -> Cloud:
    """An empty subscription with one owner. Names follow from the seed; secrets do not."""
    client = name_uuid("client", weather.seed)
    owner = Principal(client, name_uuid("object", weather.seed), secrets.token_urlsafe(24), "twin owner")
    return Cloud(
        tenant=name_uuid("tenant", weather.seed),
        subscription=name_uuid("subscription", weather.seed),
        key=secrets.token_urlsafe(32),
        control=secrets.token_urlsafe(24),
        admin=client,
        weather=weather,
        principals={client: owner},
    )
