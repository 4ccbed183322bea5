"""Images that nodes build and share through their store, layer by layer: real agents and engines."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from agentnode import Node

from stoker.agent.pack import pack
from stoker.model.cause import Cause
from stoker.model.environment import BuiltEnvironment
from stoker.model.job.job import Environment
from stoker.model.job.sections import OWN_IMAGES
from stoker.model.run.report import Outcome, Report
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore
from stoker.testing.engines import ENGINES, IMAGE, programs_without, python_image

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
SHELF = layout.environments("somebody")
LARGE = 3_000_000  # of a layer that two images have in common, in bytes that cannot be compressed
FILES: dict[str, str | bytes] = {
    "Dockerfile": f"FROM {IMAGE}\nCOPY large /large\nCOPY small /small\n",
    "large": random.Random(1).randbytes(LARGE),
    "small": "green\n",
    "train.py": "import sys; print(open('/small').read(), len(open('/large', 'rb').read()), file=sys.stdout)",
}
RUN = "python train.py"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module", params=sorted(ENGINES))
def computers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """The variables of two engines of one kind. Only the first one has the base image."""
    with ExitStack() as stack:
        found = []
        for number in (1, 2):
            folder = tmp_path_factory.mktemp("e") / str(number)
            found.append(dict(stack.enter_context(ENGINES[request.param](folder, python_image(KEPT)))))
        for one in found:
            one["NAME"] = request.param
            one["PATH"] = str(programs_without(tmp_path_factory.mktemp("bin"), one["PATH"], keep=request.param))
        subprocess.run([request.param, "rmi", IMAGE], env=found[1], check=True, capture_output=True)
        yield found


class ImageNode(Node):
    """With a disk and a run of its own, an engine, and images that it shares."""

    def __init__(self, root: Path, name: str, agent: Path, engine: Mapping[str, str]) -> None:
        super().__init__(root / name, agent)
        (root / "environments").mkdir(exist_ok=True)
        link = self.root / "store" / layout.ENVIRONMENTS.rstrip("/")
        link.parent.mkdir(parents=True)
        link.symlink_to(root / "environments")
        self.store = FolderStore(self.root / "store")
        self._engine = {name: value for name, value in engine.items() if name != "NAME"}

    def carry_out(self, files: Mapping[str, str | bytes], environment: Environment | None = None) -> Report:
        wanted = environment or Environment(dockerfile="Dockerfile")
        self.order(RUN, files, environment=wanted, shelf=SHELF)
        return self.finish(self.start(**self._engine), 150)

    def packs(self) -> dict[str, int]:
        return {one.key: one.size_bytes for one in self.store.list(layout.environment_packs(SHELF).rstrip("/"))}

    def heads(self) -> list[BuiltEnvironment]:
        found = self.store.list(layout.environment_heads(SHELF).rstrip("/"))
        return [load(BuiltEnvironment, self.store.get(one.key)) for one in found]

    @property
    def built(self) -> bool:
        return b"/large" in self.log()


@pytest.fixture
def node(tmp_path: Path, agent: Path, computers: list[Any]) -> Iterator[Callable[[int], ImageNode]]:
    made: list[ImageNode] = []

    def make(computer: int) -> ImageNode:
        made.append(ImageNode(tmp_path, str(len(made)), agent, computers[computer]))
        return made[-1]

    yield make
    for engine in computers:
        forget(engine)


def forget(engine: Mapping[str, str]) -> None:
    """All images that were built or restored. Names of the registry in between are gone already."""
    listed = [engine["NAME"], "images", "--format", "{{.Repository}}:{{.Tag}}"]
    names = subprocess.run(listed, env=engine, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in names if name.startswith("127.0.0.1")], names
    if own := [name for name in names if name.startswith(f"{OWN_IMAGES}:")]:
        subprocess.run([engine["NAME"], "rmi", "--force", *own], env=engine, capture_output=True, check=True)


def test_an_image_is_built_by_one_node_and_restored_by_another_without_its_base(
    node: Callable[[int], ImageNode],
) -> None:
    first, second = node(0), node(1)
    built = first.carry_out(FILES)
    assert built.outcome is Outcome.SUCCEEDED, built.message
    assert first.built
    (head,) = first.heads()
    assert (head.name, head.source, head.id, f"sha256:{head.image}") == (
        "ants",
        "Dockerfile",
        built.environment,
        built.image,
    )
    restored = second.carry_out(FILES)
    assert restored.outcome is Outcome.SUCCEEDED, (restored.message, second.log())
    assert not second.built
    assert second.log().split()[-2:] == [b"green", str(LARGE).encode()]
    assert (restored.image, restored.environment) == (built.image, built.environment)
    assert restored.packages["python"] == built.packages["python"]


def test_an_image_that_differs_in_a_layer_moves_that_layer_alone(node: Callable[[int], ImageNode]) -> None:
    first, second = node(0), node(1)
    first.carry_out(FILES)
    second.carry_out(FILES)
    before = first.packs()
    changed = {**FILES, "small": "blue\n"}
    assert node(0).carry_out(changed).outcome is Outcome.SUCCEEDED
    assert sum(size for name, size in first.packs().items() if name not in before) < 20_000
    third = node(1)
    assert third.carry_out(changed).outcome is Outcome.SUCCEEDED
    assert not third.built
    assert b"blue" in third.log()
    (told,) = [text for text in third.events("environment") if "MB downloaded" in text]
    assert float(told.rpartition("(")[2].split()[0]) < 0.1, told


def test_a_damaged_layer_is_not_used_and_is_replaced(node: Callable[[int], ImageNode], computers: list[Any]) -> None:
    first, second = node(0), node(1)
    first.carry_out(FILES)
    (layer,) = [key for key, size in first.packs().items() if LARGE <= size < LARGE * 1.01]
    data = first.store.get(layer)
    first.store.put(layer, data[:-1000] + bytes(1000))
    report = second.carry_out(FILES)
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.INSTALL_FAILED), "it has no base to build on"
    forget(computers[0])
    third, fourth = node(0), node(1)
    third.carry_out(FILES)
    assert third.built
    assert fourth.carry_out(FILES).outcome is Outcome.SUCCEEDED


def test_a_rerun_has_the_image_that_the_run_had_and_not_what_its_dockerfile_gives_today(
    node: Callable[[int], ImageNode],
) -> None:
    built = node(0).carry_out(FILES)
    again = node(1)
    report = again.carry_out(FILES, Environment(image=f"{OWN_IMAGES}@{built.image}"))
    assert report.outcome is Outcome.SUCCEEDED, (report.message, again.log())
    assert (report.image, again.built) == (built.image, False)
    gone = node(1).carry_out(FILES, Environment(image=f"{OWN_IMAGES}@sha256:{'0' * 64}"))
    assert (gone.outcome, gone.cause) == (Outcome.BROKEN, Cause.IMAGE_MISSING)
