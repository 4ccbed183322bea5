"""What engines with docker's command line have in common. They differ in how they say what they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from stoker.containers import ABSENT, ContainerRequest, EngineFeatures, EngineSight, ImageSight, ImageSource

LOOK_S = 20.0
LABEL = "stoker.node"
_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}  # the kernel's, and those of images
_NARROWER = {"amd64": "386"}  # also run by the processor
_EMULATORS = Path("/proc/sys/fs/binfmt_misc")
_KERNELS = {one: kernel for kernel, one in _NAMES.items()}


class CommandLineEngine:
    name: ClassVar[str]
    features: ClassVar[EngineFeatures]

    def look(self, image: str, variables: Mapping[str, str]) -> EngineSight:
        """Of two questions the second is only asked where the first was answered."""
        try:
            said = self._ask(("info", "--format", "{{json .}}"), variables)
            if said.returncode:
                return self.refused(said.stderr, variables.get(self.features.socket, ""))
            sight = self.read_info(json.loads(said.stdout))
            images = self._find(image, variables) if image else None
        except FileNotFoundError:
            return EngineSight(self.name, trouble=ABSENT, hint=self.features.install)
        except subprocess.TimeoutExpired:
            return EngineSight(self.name, trouble=f"did not answer within {LOOK_S:.0f} s", hint="restart it")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return EngineSight(self.name, trouble=f"its answer cannot be read: {error}")
        return replace(sight, image=images)

    def _find(self, image: str, variables: Mapping[str, str]) -> ImageSight | None:
        """By its name; of one that was built here, `sha256:…` in the name may be its id."""
        for name in dict.fromkeys((image, image.rpartition("@sha256:")[2])):
            found = self._ask(("image", "inspect", "--format", "{{json .}}", name), variables)
            if not found.returncode:
                return read_image(json.loads(found.stdout), image)
        return None

    def read_info(self, said: Mapping[str, Any]) -> EngineSight:
        raise NotImplementedError

    def refused(self, words: str, socket: str) -> EngineSight:  # noqa: ARG002  # where it has one
        return EngineSight(self.name, trouble=last_line(words) or "it failed without a message")

    def obtain(self, source: ImageSource) -> list[str]:
        if not source.dockerfile:
            return [
                self.features.program,
                "pull",
                *self._speaking(plain=source.plain),
                source.image,
            ]
        arguments = [f"--build-arg={name}={value}" for name, value in source.arguments.items()]
        named = ["--tag", source.image, "--file", source.dockerfile]
        # A build that fails would leave the container of its last step.
        return [self.features.program, "build", "--force-rm", *named, *arguments, source.context]

    def push(self, image: str, *, plain: bool = False) -> list[str]:
        return [self.features.program, "push", *self._speaking(plain=plain), image]

    def _speaking(self, *, plain: bool) -> tuple[str, ...]:
        return (self.features.plain or ()) if plain else ()

    def name_image(self, image: str, name: str) -> list[str]:
        return [self.features.program, "tag", image, name]

    def discard(self, image: str) -> list[str]:
        return [self.features.program, "rmi", image]

    def start(self, request: ContainerRequest) -> list[str]:
        words = [self.features.program, "run", "--rm", "--interactive", "--init", "--name", named(request.key)]
        words += ["--label", f"{LABEL}={request.key}", "--env", f"{request.mark}={request.key}"]
        words += ["--network", "host", "--log-driver", "none", "--pull", "never", "--workdir", request.work]
        # Its folders are the user's own: SELinux would deny them. Podman allows 2,048 threads.
        words += ["--no-healthcheck", "--security-opt", "label=disable", "--pids-limit", "-1"]
        words += ["--user", ":".join(map(str, request.user))] if request.user else ["--user", "0:0"]
        words += self.features.keep_user if request.keeps_user else ()
        words += ["--shm-size", str(request.shared_bytes)]
        for limit, (soft, hard) in request.limits.items():
            words += ["--ulimit", f"{limit}={soft}:{hard}"]
        for folder in request.folders:
            words += ["--mount", _mount(folder)]
        for folder in request.inputs:
            words += ["--mount", f"{_mount(folder)},readonly"]
        words += self.features.gpus if request.gpus else ()
        return [*words, "--entrypoint", "/bin/sh", request.image, "-c", request.script]

    def enter(
        self, request: ContainerRequest, words: Sequence[str], *, passed: Sequence[str] = (), terminal: bool = False
    ) -> list[str]:
        given = [word for name in passed for word in ("--env", name)]
        seen = ["--interactive", *(["--tty"] if terminal else [])]
        return [self.features.program, "exec", *seen, *given, named(request.key), *words]

    def remove(self, key: str) -> list[str]:
        return [self.features.program, "rm", "--force", "--volumes", named(key)]

    def _ask(self, words: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.features.program, *words],
            env=dict(variables),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOOK_S,
            stdin=subprocess.DEVNULL,
        )


def named(key: str) -> str:
    return f"stoker-{key}"


def read_image(said: Any, name: str) -> ImageSight:
    """From `image inspect`, of one image; some engines list it."""
    said = said[0] if isinstance(said, list) else said
    config = said.get("Config") or {}
    entry = config.get("Entrypoint") or ()
    words = (entry,) if isinstance(entry, str) else tuple(entry)
    known = dict(str(one).rpartition("@")[::2] for one in said.get("RepoDigests") or ())
    id, (repository, _, asked) = str(said["Id"]).removeprefix("sha256:"), name.partition("@")
    repository = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
    # Some engines spell out where an image without a registry comes from.
    digest = next((one for place, one in known.items() if f"/{place}".endswith(f"/{repository}")), "")
    if asked and asked != f"sha256:{id}":
        digest = asked  # engines forget it with the last name of an image
    return ImageSight(id, str(said["Architecture"]), words, digest)


def of_image(machine: str) -> str:
    """An architecture as images name it."""
    return _NAMES.get(machine, machine)


def foreign(image: ImageSight, engine: EngineSight, emulators: Path = _EMULATORS) -> bool:
    """The image is of another architecture, and no emulator is set up for that."""
    if image.architecture in ("", engine.architecture, _NARROWER.get(engine.architecture)):
        return False
    return not (emulators / f"qemu-{_KERNELS.get(image.architecture, image.architecture)}").exists()


def last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


def _mount(folder: str) -> str:
    """As a line of CSV: a path may have commas and quotes."""
    place = f"source={folder}", f"target={folder}"
    return ",".join(["type=bind", *(_quoted(one) for one in place)])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text
