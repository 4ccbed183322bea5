"""The twin for test authors: a cloud in this process, and the fixture `azure_twin` that creates one."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stoker.testing.fake_machines import FakeMachines
from stoker.twin.machines import Machines
from stoker.twin.machines.opening import open_machines
from stoker.twin.state import CloudState
from stoker.twin.time.weather import Weather
from stoker.twin.twin import OpenMachines, Twin, TwinAddress
from stoker.twin.web import tls
from stoker.twin.world import TwinWorld


class TwinHandle:
    """A running twin, with helpers for tests: `ask` and `order` call its control API."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._context = ssl.create_default_context(cafile=twin.address.authority)

    @property
    def address(self) -> TwinAddress:
        return self._twin.address

    @property
    def machines(self) -> Machines:
        return self._twin.machines

    @property
    def cloud(self) -> CloudState:
        return self._twin.world.cloud

    def ask(self, word: str) -> Any:
        return self._call("GET", word, None)

    def order(self, word: str, **order: Any) -> Any:
        return self._call("POST", word, json.dumps(order).encode())

    def _call(self, method: str, word: str, body: bytes | None) -> Any:
        headers = {"Authorization": f"Bearer {self.address.token}"}
        request = Request(f"{self.address.url}/twin/{word}", body, headers, method=method)
        try:
            with urlopen(request, context=self._context, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise ValueError(json.load(error)["error"]["message"]) from error

    def forget(self) -> None:
        """Deletes everything in it at once, without an action on any machine."""
        self._twin.world.change(lambda cloud, _: (cloud.drop(*cloud.resources), None))

    def wait(self, condition: Callable[[CloudState], Any], seconds: float = 20.0) -> Any:
        """Waits until this is true of the cloud, and returns the value of the condition."""
        give_up = time.monotonic() + seconds
        while not (found := condition(self.cloud)):
            if time.monotonic() > give_up:
                raise TimeoutError(f"timed out after {seconds} s; status of the twin: {self.ask('status')}")
            time.sleep(0.01)
        return found


def real_machines(folder: Path) -> OpenMachines:
    """Machines of the kind that this computer supports, for a `Twin` of the same folder."""

    def open_(world: TwinWorld) -> Machines:
        authority = tls.certificate(folder / "tls").authority
        return open_machines(folder / "machines", world.token_for, acknowledged=world.acknowledged, authority=authority)

    return open_


@contextmanager
def twin(
    folder: Path, machines: Machines | None = None, *, weather: Weather | None = None, speed: float = 1.0
) -> Iterator[TwinHandle]:
    """A twin in this process, with fake machines unless others are given."""
    given: Machines = FakeMachines() if machines is None else machines
    running = Twin(folder, lambda _: given, weather=weather, speed=speed)
    running.start()
    try:
        yield TwinHandle(running)
    finally:
        running.close()


@pytest.fixture
def azure_twin(tmp_path: Path) -> Iterator[TwinHandle]:
    """For your conftest: `from stoker.testing.twin import azure_twin`."""
    with twin(tmp_path / "twin") as handle:
        yield handle
