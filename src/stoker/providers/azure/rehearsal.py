"""The same provider on the twin of this computer. The account is the twin's own, and a twin that was killed is
restarted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from stoker.errors import NotSetUp, ProviderFailed
from stoker.files import is_held
from stoker.model.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.providers import Setup
from stoker.providers.azure import AzureProvider
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.recording import SWITCH
from stoker.providers.azure.market.listed import listed

NAME = "azure-twin"  # of its entry point
WORKSPACE = "rehearsal"  # resources of a user's own account in the same twin are not ours
REGIONS = ("westeurope", "eastus")
_START_S = 60.0


class TwinProvider(AzureProvider):
    """A twin that was stopped leaves no address and stays down; one that was killed, or went down with its computer,
    leaves it behind."""

    looks_kept_s: ClassVar[float] = 0.0  # the twin has no rate limit

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._folder = setup.home.twin
        self._turn = threading.Lock()
        self._told: dict[str, Any] = {}

    @property
    def features(self) -> Features:
        return replace(super().features, look_every_s=1.0)

    def offers(self, need: Need) -> list[Offer]:
        """While the twin is down: the list prices of Azure, which the twin uses, too."""
        try:
            self._reach()
        except NotSetUp as error:
            return [replace(offer, provider=NAME) for offer in listed(need, error.message)]
        return [replace(offer, provider=NAME) for offer in super().offers(need)]

    @property
    def _is_bare(self) -> bool:
        return False

    def start(self, request: NodeRequest) -> None:
        self._reach()
        super().start(request)

    def look(self) -> list[NodeSight]:
        """Empty while the twin is down: its VMs are off, and a restarted twin finds those of one that was killed."""
        try:
            self._reach(for_machines=True)
        except ProviderFailed:
            return []
        return super().look()

    def stop(self, key: str) -> None:
        """A VM that is off with its twin is released when the twin is back."""
        try:
            self._reach(for_machines=True)
        except NotSetUp:
            return
        super().stop(key)

    @cached_property
    def _account(self) -> Account:
        self._reach()
        told, secret = self._told, self._folder / "client.secret"
        _write_private(secret, told["client_secret"])
        return replace(twin_account(told), secret_file=str(secret), switch=str(self._home.root / SWITCH))

    def _reach(self, *, for_machines: bool = False) -> None:
        """Raises NotSetUp where the twin is down and should stay so. `for_machines`: restart it only if it has VMs."""
        with self._turn:
            told = self._address()
            if told is None:
                raise NotSetUp("the twin is down", hint="stoker twin up")
            if not is_held(self._folder / "twin.alive"):
                if for_machines and not self._has_machines():
                    raise NotSetUp("the twin is down and had no VMs", hint="stoker twin up")
                told = self._bring_back()
            if told != self._told:
                self._told = told
                self._forget_account()

    def _address(self) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads((self._folder / "twin.json").read_bytes())
        except (OSError, ValueError):
            return None
        return {name: value for name, value in told.items() if name not in ("pid", "blob")}

    def _has_machines(self) -> bool:
        machines = self._folder / "machines"
        return machines.is_dir() and any(entry.is_dir() for entry in machines.iterdir())

    def _bring_back(self) -> dict[str, Any]:
        """By the command that a user would type."""
        words = ["env", f"STOKER_HOME={self._home.root}", sys.executable, "-m", "stoker.cli", "twin", "up"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_START_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderFailed(f"could not restart the twin: {error}", hint="stoker twin up") from error
        told = self._address()
        if done.returncode or told is None:
            raise ProviderFailed(f"could not restart the twin: {done.stderr.strip()}", hint="stoker twin up")
        return told


def twin_account(told: Mapping[str, Any]) -> Account:
    """For runs on a twin, from what it reports of itself; without its secret."""
    return Account(
        subscription=told["subscription"],
        workspace=WORKSPACE,
        regions=REGIONS,
        tenant=told["tenant"],
        client=told["client_id"],
        arm=told["url"],
        login=told["url"],
        prices=f"{told['url']}/api/retail/prices",
        ca_file=told["authority"],
    )


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
