"""How an image gets onto a node, with an engine whose commands are those of a shell."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.container import images
from stoker.agent.container.images import ImageShop, explained
from stoker.agent.environment.building import Workshop
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.containers import ContainerRequest, EngineFeatures, EngineSight, ImageSight, ImageSource
from stoker.model.cause import Cause
from stoker.model.job.job import Environment, Job
from stoker.model.orders import Orders

BUILT = "registry.example.org/ants:1"


class ShellEngine:
    """Its images and its registry are files. Each computer has one."""

    name: ClassVar[str] = "shell"
    features: ClassVar[EngineFeatures] = EngineFeatures("sh", "", login=("LOGINS", ""))

    def __init__(self, folder: Path, registry: Path) -> None:
        self._folder, self._registry = folder, registry
        folder.mkdir(exist_ok=True)

    def look(self, image: str, variables: Mapping[str, str]) -> EngineSight:
        there = (self._folder / "image").exists()
        return EngineSight(self.name, image=ImageSight("1", "amd64") if there else None)

    def obtain(self, source: ImageSource) -> list[str]:
        logins = f"cat $LOGINS > {self._folder}/logins 2>/dev/null;"
        if source.dockerfile:
            return ["sh", "-c", f"{logins} sleep 0.2; echo built >> {self._folder}/image"]
        return [
            "sh",
            "-c",
            f"{logins} cp {self._registry} {self._folder}/image || {{ echo manifest unknown; exit 1; }}",
        ]

    def push(self, image: str, *, plain: bool = False) -> list[str]:
        return ["sh", "-c", f"cp {self._folder}/image {self._registry}"]

    def name_image(self, image: str, name: str) -> list[str]:
        raise NotImplementedError

    def discard(self, image: str) -> list[str]:
        raise NotImplementedError

    def start(self, request: ContainerRequest) -> list[str]:
        raise NotImplementedError

    def enter(
        self, request: ContainerRequest, words: Sequence[str], *, passed: Sequence[str] = (), terminal: bool = False
    ) -> list[str]:
        raise NotImplementedError

    def remove(self, key: str) -> list[str]:
        raise NotImplementedError


def node(place: Path, number: int, environment: Environment, engine: ShellEngine, **secrets: str) -> ImageShop:
    """Of a gang whose nodes share a computer."""
    folder = NodeFolder(place / f"node-{number}")
    folder.make({})
    machine = NodeMachine(folder, place / "environments", "", place, secrets)
    told: list[str] = []
    shop = Workshop(
        folder,
        machine.environments,
        None,
        {},
        "key",
        place / f"log-{number}",
        Stopping(),
        lambda _, text: told.append(text),
    )
    orders = Orders(
        "id",
        "x-1",
        1,
        number,
        "key",
        Job(name="x", run="true", environment=environment, secrets=tuple(secrets)),
        "s",
        "",
        nodes=2,
    )
    return ImageShop(engine, {"PATH": "/usr/bin:/bin"}, machine, orders, shop)


def test_nodes_that_share_a_computer_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes first, and finds nothing in the registry."""
    monkeypatch.setattr(images, "AWAIT_S", 0.05)
    environment = Environment(dockerfile="Dockerfile", registry="registry.example.org/ants")
    engine = ShellEngine(tmp_path / "engine", tmp_path / "registry")
    source = ImageSource(image=BUILT, dockerfile="Dockerfile")
    second, first = (node(tmp_path, number, environment, engine) for number in (1, 0))
    waiting = threading.Thread(target=second.obtain, args=(source,), daemon=True)
    waiting.start()
    while not (tmp_path / "log-1").exists() or b"manifest unknown" not in (tmp_path / "log-1").read_bytes():
        assert waiting.is_alive()
    building = threading.Thread(target=first.obtain, args=(source,), daemon=True)
    building.start()
    for one in (building, waiting):
        one.join(30)
        assert not one.is_alive()
    assert (tmp_path / "registry").read_text() == "built\n"


@pytest.mark.parametrize(
    ("image", "hosts"),
    [
        ("team/train:4", {"docker.io", "https://index.docker.io/v1/"}),
        ("registry.example.org/team/train:4", {"registry.example.org"}),
    ],
)
def test_a_login_is_given_under_each_name_that_an_engine_looks_for(image: str, hosts: set[str], tmp_path: Path) -> None:
    (tmp_path / "registry").touch()
    engine = ShellEngine(tmp_path / "engine", tmp_path / "registry")
    shop = node(tmp_path, 0, Environment(image=image, login="LOGIN"), engine, LOGIN="ada:hidden")
    shop.obtain(ImageSource(image=image))
    assert json.loads((tmp_path / "engine/logins").read_text())["auths"].keys() == hosts


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "pull access denied for ada/ants, repository does not exist or may require 'docker login'",
            Cause.IMAGE_MISSING,
        ),
        ("manifest for ada/ants:1 not found: manifest unknown", Cause.IMAGE_MISSING),
        ("unauthorized: authentication required", Cause.REGISTRY_REFUSED),
        ("dial tcp: lookup registry.example.org: no such host", Cause.REGISTRY_UNREACHABLE),
        ("write /var/lib/docker/tmp/x: no space left on device", Cause.DISK_FULL),
    ],
)
def test_what_an_engine_says_has_a_cause(said: str, cause: Cause) -> None:
    """Docker's own registry hides what is not there yet: a first build would never begin."""
    failed = AttemptBroken(f"pull: {said}", cause=Cause.INSTALL_FAILED)
    assert explained(failed, "x").cause == cause
