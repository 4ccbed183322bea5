"""Images from a real registry: with a login, built once for all nodes, recorded by digest, and how it refuses."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import Shell, made_shell

from stoker.client.settings import from_environment
from stoker.client.submit.preparation import prepare
from stoker.errors import JobInvalid
from stoker.model.cause import Cause
from stoker.model.job.job import Environment, Job
from stoker.testing.engines import (
    ENGINES,
    IMAGE,
    PASSWORD,
    USER,
    programs_without,
    published,
    python_image,
    registry,
    trust,
)

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
LOGIN = f"{USER}:{PASSWORD}"


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ENGINES[request.param](tmp_path_factory.mktemp("e") / "e", python_image(KEPT)) as variables:
        yield {**variables, "NAME": request.param}


@pytest.fixture(scope="module")
def locked(engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry with a login, and the image `python:1` in it, which the engine does not have."""
    folder = tmp_path_factory.mktemp("r")
    with registry(folder / "r", locked=True) as address:
        trust(engine, address)
        kept = {"DOCKER_CONFIG": str(folder / "login"), "REGISTRY_AUTH_FILE": str(folder / "login" / "config.json")}
        (folder / "login").mkdir()
        words = [engine["NAME"], "login", "--username", USER, "--password-stdin", address]
        subprocess.run(words, env={**engine, **kept}, input=PASSWORD, text=True, check=True, capture_output=True)
        published(engine["NAME"], {**engine, **kept}, IMAGE, f"{address}/team/python:1")
        shutil.rmtree(folder / "login")
        yield address


@pytest.fixture
def boxed(tmp_path: Path, engine: dict[str, str]) -> Iterator[Shell]:
    with made_shell(tmp_path) as shell:
        programs = programs_without(tmp_path / "bin", engine["PATH"], keep=engine["NAME"])
        shell.environ |= {**engine, "PATH": str(programs), "REGISTRY": LOGIN}
        yield shell


def removed(shell: Shell, *images: str) -> None:
    words = [shell.environ["NAME"], "rmi", "--force", *images]
    subprocess.run(words, env=shell.environ, capture_output=True, check=True)


def everything_written(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file() and not one.is_symlink())


def test_an_image_is_pulled_with_a_secret_that_nothing_keeps(boxed: Shell, locked: str) -> None:
    image = f"{locked}/team/python:1"
    environment = {"image": image, "login": "REGISTRY"}
    boxed.job("sh -c 'env; echo $STOKER_SECRETS'", environment=environment, secrets=["REGISTRY"])
    boxed.stoker("run", patience_s=200)
    facts, log = boxed.facts("job-1"), boxed.stoker("logs", "job-1").stdout
    assert facts["image"].startswith("sha256:") and len(facts["image"]) == 71
    assert facts["image"] in boxed.stoker("show", "job-1").stdout
    assert PASSWORD not in log and "REGISTRY" not in log
    boxed.kill_server()
    assert PASSWORD.encode() not in everything_written(boxed.home)
    removed(boxed, image)


def test_what_a_registry_refuses_is_told_in_words(boxed: Shell, locked: str) -> None:
    image = f"{locked}/team/python:1"
    for environment, cause in (
        ({"image": image}, Cause.REGISTRY_REFUSED),
        ({"image": image, "login": "WRONG"}, Cause.REGISTRY_REFUSED),
        ({"image": image, "login": "SHAPELESS"}, Cause.REGISTRY_REFUSED),
        ({"image": f"{locked}/team/python:2", "login": "REGISTRY"}, Cause.IMAGE_MISSING),
        ({"image": "127.0.0.1:1/team/python:1"}, Cause.REGISTRY_UNREACHABLE),
    ):
        boxed.environ |= {"WRONG": f"{USER}:else", "SHAPELESS": "token"}
        boxed.job("true", environment=environment, secrets=["REGISTRY", "WRONG", "SHAPELESS"])
        boxed.stoker("run", code=None, patience_s=200)
        facts = boxed.facts("last")
        assert facts["cause"] == cause, (environment, facts["reason"])
        assert PASSWORD not in facts["reason"]


def test_a_dockerfile_is_built_once_and_pulled_by_every_other_node(boxed: Shell, locked: str) -> None:
    boxed.write("Dockerfile", f"FROM {locked}/team/python:1\nENV COLOUR=green\n")
    environment = {"dockerfile": "Dockerfile", "registry": f"{locked}/team/built", "login": "REGISTRY"}
    boxed.job("echo $COLOUR", environment=environment, secrets=["REGISTRY"])
    boxed.stoker("run", patience_s=200)
    listed = subprocess.run(
        [boxed.environ["NAME"], "images", "--format", "{{.Repository}}:{{.Tag}}"],
        env=boxed.environ,
        capture_output=True,
        text=True,
    ).stdout.split()
    built = [one for one in listed if one.startswith(f"{locked}/team/built:")]
    removed(boxed, *built)  # as on a node that has not built it
    boxed.stoker("run", patience_s=200)
    logs = [boxed.raw("logs", f"job-{number}").lower() for number in (1, 2)]
    assert [b"step 1/2" in one for one in logs] == [True, False]
    assert [boxed.stoker("logs", f"job-{number}").stdout.split()[-1] for number in (1, 2)] == ["green", "green"]
    if (
        boxed.environ["NAME"] == "docker"
    ):  # Podman compresses what it pushes anew, so that the registry has another digest
        assert boxed.facts("job-1")["image"] == boxed.facts("job-2")["image"]
    boxed.write("Dockerfile", f"FROM {locked}/team/python:1\nENV COLOUR=blue\n")
    boxed.stoker("run", patience_s=200)
    found = boxed.stoker("diff", "job-2", "job-3", "--json").stdout
    assert boxed.facts("job-3")["image"] in found and boxed.facts("job-2")["image"] in found


def test_a_registry_is_asked_before_a_machine_is_requested(locked: str, engine: dict[str, str], tmp_path: Path) -> None:
    settings = from_environment({"STOKER_HOME": str(tmp_path / "home"), "LOGIN": LOGIN, "WRONG": f"{USER}:else"})
    project = tmp_path / "project"
    project.mkdir()
    (project / "Dockerfile").write_text(f"FROM {locked}/team/none:1 AS one\nFROM one\n")
    name = f"{locked}/team/arm:1"
    arm = ["--arch=arm64"] if engine["NAME"] == "podman" else []  # Docker's command imports for its own processor
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    login = [engine["NAME"], "login", "--username", USER, "--password-stdin", locked]
    kept = {"DOCKER_CONFIG": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "config.json")}
    subprocess.run(login, env={**engine, **kept}, input=PASSWORD, text=True, check=True, capture_output=True)
    made = [engine["NAME"], "import", *arm, str(tmp_path / "empty.tar"), "localhost/arm:1"]
    subprocess.run(made, env=engine, check=True, capture_output=True)
    published(engine["NAME"], {**engine, **kept}, "localhost/arm:1", name)

    def asked(size: str | None = None, **environment: str) -> tuple[str, ...]:
        secrets = tuple(environment[name] for name in ("login",) if name in environment)
        wanted = Environment(**environment)  # type: ignore[arg-type]  # all of these are texts
        job = Job(name="x", run="true", on="cloud", size=size, environment=wanted, secrets=secrets)
        return prepare(job, project, settings, elsewhere=True).notes

    good = f"{locked}/team/python:1"
    assert asked(image=good, login="LOGIN") == ()
    assert len(asked(image=good)) == 1, "the machines may have an identity that may read it"
    assert len(asked(image="127.0.0.1:1/team/python:1")) == 1, "it is not reached from here"
    assert len(asked("Standard_D2ps_v5", image=name, login="LOGIN")) == len(arm)
    for field, environment in (
        ("image", {"image": f"{locked}/team/python:2", "login": "LOGIN"}),
        ("login", {"image": good, "login": "WRONG"}),
        ("dockerfile", {"dockerfile": "Dockerfile", "login": "LOGIN"}),
        *[("image", {"image": name, "login": "LOGIN"}) for _ in arm],
    ):
        for _ in range(2):  # what was learned is kept
            with pytest.raises(JobInvalid) as refused:
                asked(**environment)
            assert [one.field for one in refused.value.problems] == [f"environment.{field}"], environment
