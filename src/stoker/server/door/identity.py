"""What tells this server from any other: a random word, made once and kept in its home."""

from __future__ import annotations

import secrets
from contextlib import suppress

from stoker.model.workspace.home import Home


def server_id(home: Home) -> str:
    """The same at every start. Whoever holds the home's lock makes it, so no two do so at once."""
    with suppress(FileNotFoundError):
        if known := home.server_id.read_text(encoding="utf-8").strip():
            return known
    made = secrets.token_hex(8)
    part = home.server_id.with_suffix(".part")
    part.write_text(f"{made}\n", encoding="utf-8")
    part.replace(home.server_id)
    return made
