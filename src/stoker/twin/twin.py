"""A whole twin in this process: its state, its time, its machines and its web server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.errors import TwinFailed
from stoker.twin import state
from stoker.twin.blob import BlobService
from stoker.twin.machines import Machines
from stoker.twin.time.weather import TwinClock, Weather
from stoker.twin.web import server
from stoker.twin.web.application import Application
from stoker.twin.web.server import WebServer
from stoker.twin.world import TwinWorld

_UNSAVED = 1000  # requests that a killed twin may have answered without saving: names are never reused

OpenMachines = Callable[[TwinWorld], Machines]


@dataclass(frozen=True, slots=True)
class TwinAddress:
    """What a client needs. `token` is for the twin's own control API, the rest for Azure clients."""

    url: str
    authority: str  # the file of the certificate to trust
    tenant: str
    subscription: str
    client_id: str
    client_secret: str = field(repr=False)
    token: str = field(repr=False)


class Twin:
    """Continues with the state in the folder. Its weather stays unless another is given."""

    def __init__(
        self,
        folder: Path,
        open_machines: OpenMachines,
        *,
        weather: Weather | None = None,
        speed: float = 1.0,
        port: int = 0,
        blob: BlobService | None = None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "cloud.json"
        cloud = state.load(file) or state.fresh(weather or Weather())
        cloud = replace(cloud, requests=cloud.requests + _UNSAVED)
        if weather:
            cloud = replace(cloud, weather=weather)
        certificate = server.certificate(folder / "tls")
        self.world = TwinWorld(file, cloud, TwinClock(cloud.now, speed))
        application = Application(self.world, cloud.control, blob)
        self._server = _listen(
            lambda at: WebServer(application, certificate, at, lambda: self.world.cloud.blob), port, cloud.port
        )
        self.world.change(lambda cloud, _: (replace(cloud, port=self._server.port), None))
        owner = cloud.principals[cloud.admin]
        self.address = TwinAddress(
            url=self._server.url,
            authority=str(certificate.authority),
            tenant=cloud.tenant,
            subscription=cloud.subscription,
            client_id=owner.client_id,
            client_secret=owner.secret,
            token=cloud.control,
        )
        self.machines = open_machines(self.world)

    def start(self) -> None:
        """Machines can reach the twin at the same address as everybody else."""
        self.machines.expose(self._server.port)
        self.world.run(self.machines)
        self._server.start()

    def close(self) -> None:
        """Machines keep running; the next twin of the folder finds them."""
        self._server.close()
        self.world.close()
        self.machines.close()

    def power_down(self) -> None:
        """Powers off every machine; a later twin powers them on again. Time stops first, otherwise it would look as if
        they shut down by themselves."""
        self.world.close()
        for instance in self.world.cloud.instances.values():
            if self.machines.alive(instance.name):
                self.machines.power_off(instance.name)


def _listen(serve: Callable[[int], WebServer], wanted: int, before: int) -> WebServer:
    """At the requested port; else at the earlier one, if it is free; else at any."""
    try:
        return serve(wanted or before)
    except OSError as error:
        if not wanted:
            return serve(0)
        raise TwinFailed(
            f"could not listen on port {wanted}: {error.strerror}", hint="omit `--port` to use any free port"
        ) from error
