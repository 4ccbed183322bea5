"""Charliecloud, which nodes of HPC clusters have: no daemon, no root, and apart from the node are only the files.

A process inside is an ordinary child of whoever starts it. So there is nothing to enter or to remove: each command gets
the image by itself, with the same folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stoker.containers import ABSENT, ContainerRequest, EngineFeatures, EngineSight, ImageSight, ImageSource
from stoker.containers.commandline import LOOK_S, last_line, of_image

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OUTSIDE = ("TMPDIR", "XDG_*", "SSL_CERT_*", "CH_*")  # variables of the node that mean nothing inside
# Its cache is a git repository, and an account may have no name there.
_SOMEBODY = ("NAME=stoker", "EMAIL=stoker@localhost")
_BUILDER = ["env", *(f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in _SOMEBODY), "ch-image"]
# Where a folder is to appear must exist in the image. `$1` is the image, then folders, `--`, and the command.
_WITH_PLACES = """
image=$1; shift
while [ "$1" != -- ]; do mkdir -p "$image$1" || exit 125; shift; done
shift
export USER="${USER:-$(id -un)}"
exec "$@"
"""
_WITH_GPUS = 'ch-fromhost --nvidia "$1" || exit 125'


class CharliecloudEngine:
    name: ClassVar[str] = "charliecloud"
    features: ClassVar[EngineFeatures] = EngineFeatures(
        program="ch-run",
        install="sudo apt-get install charliecloud",
        variables=("CH_", "REQUESTS_CA_BUNDLE"),
        isolates=False,
        plain=None,
        login_variables=("CH_IMAGE_USERNAME", "CH_IMAGE_PASSWORD"),
    )

    def look(self, image: str, variables: Mapping[str, str]) -> EngineSight:
        try:
            asked = ["ch-run", "--version"]
            said = subprocess.run(
                asked,
                env={"USER": "user", **variables},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LOOK_S,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            return EngineSight(self.name, trouble=ABSENT, hint=self.features.install)
        except (OSError, subprocess.SubprocessError) as error:
            return EngineSight(self.name, trouble=f"it does not answer: {error}")
        version = last_line(said.stdout or said.stderr)
        if said.returncode:
            return EngineSight(self.name, trouble=version or "it failed without a message")
        here = of_image(os.uname().machine)
        return EngineSight(self.name, version, here, rootless=True, image=_find(image, variables) if image else None)

    def obtain(self, source: ImageSource) -> list[str]:
        if not source.dockerfile:
            return [*_BUILDER, "pull", source.image]
        arguments = [f"--build-arg={name}={value}" for name, value in source.arguments.items()]
        # Package managers expect to be root: `--force` lets them believe it.
        return [
            *_BUILDER,
            "build",
            "--force",
            "--tag",
            source.image,
            "--file",
            source.dockerfile,
            *arguments,
            source.context,
        ]

    def push(self, image: str, *, plain: bool = False) -> list[str]:  # noqa: ARG002  # see `features.plain`
        return [*_BUILDER, "push", image]

    def name_image(self, image: str, name: str) -> list[str]:
        raise NotImplementedError("needed only where `features.plain` is")

    def discard(self, image: str) -> list[str]:
        return [*_BUILDER, "delete", image]

    def start(self, request: ContainerRequest) -> list[str]:
        words = self.enter(request, ("/bin/sh", "-c", request.script))
        if request.gpus:
            words[2] = f"{_WITH_GPUS}\n{words[2]}"
        return words

    def enter(
        self,
        request: ContainerRequest,
        words: Sequence[str],
        *,
        passed: Sequence[str] = (),  # noqa: ARG002  # all variables of the caller are inside, too
        terminal: bool = False,  # noqa: ARG002  # and its terminal
    ) -> list[str]:
        image = Path(request.image)
        folders = (*request.folders, *request.inputs)
        options = ["ch-run", "--storage", str(image.parents[1]), "--cd", request.work]
        options += ["--no-passwd"] if not (image / "etc" / "passwd").exists() else []
        options += [f"--bind={folder}" for folder in folders]
        options += [f"--unset-env={name}" for name in _OUTSIDE]
        options += [f"--set-env=PATH={_PATH}", "--set-env"]
        held = ["/bin/sh", "-c", _WITH_PLACES, "sh", str(image), *folders, "--"]
        return [*held, *options, _named(image), "--", *words]

    def remove(self, key: str) -> list[str]:  # noqa: ARG002  # nothing is left where its processes have ended
        return ["true"]


def _find(image: str, variables: Mapping[str, str]) -> ImageSight | None:
    home = variables.get("CH_IMAGE_STORAGE") or f"/var/tmp/{variables.get('USER') or _user()}.ch"
    place = Path(home) / "img" / image.replace("/", "%").replace(":", "+")
    try:
        said = (place / "ch" / "metadata.json").read_bytes()
        architecture = str(json.loads(said)["arch"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ImageSight(_identity(place, said), architecture, place=str(place))


def _identity(place: Path, metadata: bytes) -> str:
    """Charliecloud has no ids of images: this one changes with every file of it."""
    digest = hashlib.sha256(metadata)
    try:
        digest.update((place / "ch" / "git.pickle").read_bytes())
    except OSError:  # it keeps no cache of builds
        digest.update(str(place.stat().st_mtime_ns).encode())
    return digest.hexdigest()


def _named(place: Path) -> str:
    return place.name.replace("%", "/").replace("+", ":")


def _user() -> str:
    import pwd  # here, because most nodes have the variable

    return pwd.getpwuid(os.getuid()).pw_name
