"""A whole twin: its memory, its time, its machines and its web server, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.errors import TwinFailed
from stoker.twin import statefile
from stoker.twin.blob.service import BlobService
from stoker.twin.machines import Machines
from stoker.twin.time.clock import Clock
from stoker.twin.time.weather import Weather
from stoker.twin.web import tls
from stoker.twin.web.application import Application
from stoker.twin.web.server import Server
from stoker.twin.world import World

_UNSAVED = 1000  # requests that a killed twin may have answered without saving: names are never given twice

OpenMachines = Callable[[World], Machines]


@dataclass(frozen=True, slots=True)
class Address:
    """What a client needs to know. `token` is for the twin's own control, the rest for Azure's clients."""

    url: str
    authority: str  # the file of the certificate to trust
    tenant: str
    subscription: str
    client_id: str
    client_secret: str = field(repr=False)
    token: str = field(repr=False)


class Twin:
    """Goes on with what is in the folder. The weather of an earlier time stays unless another is given."""

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
        cloud = statefile.load(file) or statefile.fresh(weather or Weather())
        cloud = replace(cloud, requests=cloud.requests + _UNSAVED)
        if weather:
            cloud = replace(cloud, weather=weather)
        certificate = tls.certificate(folder / "tls")
        self.world = World(file, cloud, Clock(cloud.now, speed))
        self._server = _listen(Application(self.world, cloud.control, blob), certificate, port, cloud.port)
        self.world.change(lambda cloud, _: (replace(cloud, port=self._server.port), None))
        owner = cloud.principals[cloud.admin]
        self.address = Address(
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
        """Machines can reach the twin at the address that everybody else uses."""
        self.machines.expose(self._server.port)
        self.world.run(self.machines)
        self._server.start()

    def close(self) -> None:
        """Machines go on; the next twin of the folder finds them."""
        self._server.close()
        self.world.close()
        self.machines.close()

    def power_down(self) -> None:
        """Every machine is switched off; a later twin switches them on again. Time stops first, or it would be taken
        for the machines' own doing."""
        self.world.close()
        for instance in self.world.cloud.instances.values():
            if self.machines.alive(instance.name):
                self.machines.power_off(instance.name)


def _listen(application: Application, certificate: tls.Certificate, wanted: int, before: int) -> Server:
    """At the port that was asked for; else where it was before, if that is still free; else anywhere."""
    if wanted:
        return _server(application, certificate, wanted)
    try:
        return Server(application, certificate, before)
    except OSError:
        return Server(application, certificate)


def _server(application: Application, certificate: tls.Certificate, port: int) -> Server:
    try:
        return Server(application, certificate, port)
    except OSError as error:
        raise TwinFailed(
            f"port {port} cannot be used: {error.strerror}", hint="leave `--port` out to use any free port"
        ) from error
