"""Why a run has to wait, in words."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.model.run import Run as Facts


def why(client: Client, run: Facts) -> str:
    """Asks the server, which sees what stands in the way; empty where nothing does."""
    return client.run(run.name).facts.reason
