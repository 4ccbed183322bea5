"""Docker, with its daemon on this computer."""

from __future__ import annotations

import grp
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from stoker.containers import EngineFeatures, EngineSight
from stoker.containers.commandline import CommandLineEngine, last_line, of_image

SOCKET = "unix:///var/run/docker.sock"


class DockerEngine(CommandLineEngine):
    name: ClassVar[str] = "docker"
    features: ClassVar[EngineFeatures] = EngineFeatures(
        program="docker",
        install="sudo apt-get install docker.io",
        variables=("DOCKER_",),
        socket="DOCKER_HOST",
        gpus=("--gpus", "all"),
        login=("DOCKER_CONFIG", "config.json"),
    )

    def look(self, image: str, variables: Mapping[str, str]) -> EngineSight:
        host = variables.get(self.features.socket, "")
        if host and not host.startswith("unix://"):
            trouble = f"DOCKER_HOST is `{host}`: a daemon on another computer does not see the files of the run"
            return EngineSight(self.name, trouble=trouble, hint="unset DOCKER_HOST")
        return super().look(image, variables)

    def read_info(self, said: Mapping[str, Any]) -> EngineSight:
        rootless = any("rootless" in str(one) for one in said.get("SecurityOptions") or ())
        architecture, gpus = of_image(str(said["Architecture"])), "nvidia" in (said.get("Runtimes") or ())
        return EngineSight(self.name, str(said["ServerVersion"]), architecture, rootless, gpus)

    def refused(self, words: str, socket: str) -> EngineSight:
        socket = (socket or SOCKET).removeprefix("unix://")
        if "permission denied" in words.lower():
            group = _group(Path(socket))
            trouble = f"permission denied on {socket}: only root and the group `{group}` may use it"
            return EngineSight(self.name, trouble=trouble, hint=f"sudo usermod -aG {group} $USER, and log in again")
        if "cannot connect" in words.lower():
            trouble = f"its daemon does not answer on {socket}"
            return EngineSight(self.name, trouble=trouble, hint="sudo systemctl start docker")
        return EngineSight(self.name, trouble=last_line(words) or "it failed without a message")


def _group(socket: Path) -> str:
    try:
        return grp.getgrgid(socket.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "docker"
