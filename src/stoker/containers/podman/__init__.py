"""Podman, which has no daemon, with root or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stoker.containers import EngineFeatures, EngineSight
from stoker.containers.commandline import CommandLineEngine, of_image


class PodmanEngine(CommandLineEngine):
    name: ClassVar[str] = "podman"
    features: ClassVar[EngineFeatures] = EngineFeatures(
        program="podman",
        install="sudo apt-get install podman catatonit",
        variables=("CONTAINER_", "CONTAINERS_", "REGISTRY_", "STORAGE_", "XDG_", "DBUS_"),
        gpus=("--device", "nvidia.com/gpu=all"),
        keep_user=("--userns", "keep-id"),
        attendants=("conmon",),
        plain=("--tls-verify=false",),
        login=("REGISTRY_AUTH_FILE", ""),
    )

    def read_info(self, said: Mapping[str, Any]) -> EngineSight:
        host = said["host"]
        rootless = bool(host["security"]["rootless"])
        return EngineSight(self.name, str(said["version"]["Version"]), of_image(str(host["arch"])), rootless)
