"""The contract of every container engine, real engines for it, and an image that is made of this computer's Python."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.containers import ContainerEngine, ContainerRequest, ImageSource, engines
from stoker.files import replacing

MARK = "STOKER_NODE_KEY"
PATIENCE_S = 20.0
IMAGE = "localhost/stoker-python:1"
INSTALL = "make .services/engines"
_NUMBERS = itertools.count()
_PROGRAMS = ("sh", "cat", "sleep", "id", "uname", "ls", "env", "rm")
_LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "ensurepip", "tkinter", "__pycache__"}


class EngineContract(ABC):
    """A plug-in author subclasses it, with the first two fixtures. `variables` are those of the engine's command, and
    the engine has the image `IMAGE`."""

    @abstractmethod
    @pytest.fixture
    def engine(self) -> ContainerEngine: ...

    @abstractmethod
    @pytest.fixture
    def variables(self) -> Mapping[str, str]: ...

    @pytest.fixture
    def request_(self, engine: ContainerEngine, variables: Mapping[str, str], tmp_path: Path) -> ContainerRequest:
        (tmp_path / "data").mkdir()
        return ContainerRequest(
            key=f"contract-{os.getpid()}-{next(_NUMBERS)}",
            mark=MARK,
            image=place_of(engine, variables, IMAGE),
            script="echo ready; while read -r line; do :; done",
            user=(os.getuid(), os.getgid()),
            folders=(str(tmp_path),),
            inputs=(str(tmp_path / "data"),),
            work=str(tmp_path),
            shared_bytes=123 << 20,
            limits={"nofile": (1000, 2000), "nproc": (5000, 5000)},  # Podman's own may be more than a sandbox allows
        )

    @pytest.fixture
    def held(
        self, engine: ContainerEngine, variables: Mapping[str, str], request_: ContainerRequest
    ) -> Iterator[subprocess.Popen[bytes]]:
        with held(engine, variables, request_) as process:
            yield process

    def inside(
        self, engine: ContainerEngine, variables: Mapping[str, str], request: ContainerRequest, line: str, *names: str
    ) -> subprocess.CompletedProcess[str]:
        words, env = engine.enter(request, ("/bin/sh", "-c", line), passed=names), {**variables, MARK: request.key}
        return subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def test_it_says_what_it_is_and_which_image_it_has(
        self, engine: ContainerEngine, variables: Mapping[str, str]
    ) -> None:
        seen = engine.look(IMAGE, variables)
        assert (seen.name, seen.trouble) == (engine.name, "")
        assert seen.version
        assert seen.image is not None
        assert seen.image.architecture == seen.architecture
        assert engine.look("localhost/stoker-unknown:1", variables).image is None

    def test_it_is_absent_where_its_program_is(self, engine: ContainerEngine, tmp_path: Path) -> None:
        seen = engine.look(IMAGE, {"PATH": str(tmp_path)})
        assert (seen.trouble, seen.hint) == ("not installed", engine.features.install)

    def test_a_container_lives_as_long_as_its_input_is_open(
        self, held: subprocess.Popen[bytes], request_: ContainerRequest
    ) -> None:
        assert marked(request_.key)
        assert held.stdin
        held.stdin.close()
        await_end(request_.key)

    def test_a_container_ends_with_the_command_that_started_it(
        self,
        held: subprocess.Popen[bytes],
        engine: ContainerEngine,
        variables: Mapping[str, str],
        request_: ContainerRequest,
    ) -> None:
        """Unless its processes are ordinary ones, which end with whoever started them."""
        words = engine.enter(request_, ("/bin/sh", "-c", "trap : TERM; while :; do sleep 1; done"))
        script = subprocess.Popen(words, env={**variables, MARK: request_.key}, stdin=subprocess.DEVNULL)
        held.kill()
        if not engine.features.isolates:
            script.kill()
            script.wait()
        await_end(request_.key)

    @pytest.mark.usefixtures("held")
    def test_a_command_inside_ends_as_it_does_outside(
        self,
        engine: ContainerEngine,
        variables: Mapping[str, str],
        request_: ContainerRequest,
    ) -> None:
        assert self.inside(engine, variables, request_, "exit 7").returncode == 7
        assert self.inside(engine, variables, request_, "exec >/dev/null 2>&1; sleep 1; exit 3").returncode == 3
        killed = self.inside(engine, variables, request_, "kill -9 $$").returncode
        assert killed == (128 + signal.SIGKILL if engine.features.isolates else -signal.SIGKILL)
        given = {**variables, "COLOUR": "green ' blue"}
        assert self.inside(engine, given, request_, 'echo "$COLOUR"', "COLOUR").stdout == "green ' blue\n"

    @pytest.mark.usefixtures("held")
    def test_what_is_inside_is_as_outside(
        self,
        engine: ContainerEngine,
        variables: Mapping[str, str],
        request_: ContainerRequest,
        tmp_path: Path,
    ) -> None:
        look = (
            "import os, resource; s = os.statvfs('/dev/shm'); print(os.getuid(), os.getcwd(), s.f_blocks * s.f_bsize,"
        )
        look += " resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
        said = self.inside(engine, variables, request_, f'python3 -c "{look}"')
        assert said.stdout.split()[:2] == [str(os.getuid()), str(tmp_path)], said
        if engine.features.isolates:
            assert said.stdout.split()[2:] == [str(123 << 20), "2000"], said
            assert self.inside(engine, variables, request_, f"echo > {tmp_path}/data/x").returncode
            assert not (tmp_path / "data" / "x").exists()
        self.inside(engine, variables, request_, f"echo here > {tmp_path}/written")
        assert (tmp_path / "written").read_text() == "here\n"
        assert (tmp_path / "written").stat().st_uid == os.getuid()

    @pytest.mark.usefixtures("held")
    def test_removing_ends_a_container_and_may_be_repeated(
        self,
        engine: ContainerEngine,
        variables: Mapping[str, str],
        request_: ContainerRequest,
    ) -> None:
        for _ in range(2):
            done = subprocess.run(engine.remove(request_.key), env=dict(variables), timeout=PATIENCE_S)
        if engine.features.isolates:
            await_end(request_.key)
        else:
            assert done.returncode == 0, "there is nothing to remove: its processes are those of the node"

    def test_it_builds_an_image_with_arguments(
        self, engine: ContainerEngine, variables: Mapping[str, str], request_: ContainerRequest, tmp_path: Path
    ) -> None:
        (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nARG COLOUR\nENV COLOUR=$COLOUR\nCOPY lib /lib2\n")
        (tmp_path / "lib").write_text("content")
        source = ImageSource(
            image=f"localhost/stoker-built:{os.getpid()}",
            dockerfile=str(tmp_path / "Dockerfile"),
            context=str(tmp_path),
            arguments={"COLOUR": "dark green"},
        )
        words = engine.obtain(source)
        built = subprocess.run(words, env=dict(variables), capture_output=True, text=True, timeout=PATIENCE_S)
        assert built.returncode == 0, built
        request = replace(request_, image=place_of(engine, variables, source.image))
        with held(engine, variables, request):
            said = self.inside(engine, variables, request, 'echo "$COLOUR" $(cat /lib2)')
        assert said.stdout == "dark green content\n"


def place_of(engine: ContainerEngine, variables: Mapping[str, str], image: str) -> str:
    found = engine.look(image, variables).image
    assert found
    return found.place or image


@contextmanager
def held(
    engine: ContainerEngine, variables: Mapping[str, str], request: ContainerRequest
) -> Iterator[subprocess.Popen[bytes]]:
    env = {**variables, MARK: request.key}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(engine.start(request), env=env, **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        subprocess.run(engine.remove(request.key), env=env, capture_output=True, timeout=PATIENCE_S)
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


def marked(key: str) -> list[int]:
    """Processes of a node, wherever they run."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={key}".encode() in (one / "environ").read_bytes():
                found.append(int(one.name))
    return found


def await_end(key: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while marked(key):
        assert time.monotonic() < until, f"{marked(key)} still run"
        time.sleep(0.05)


# Real engines, private to a folder.


@contextmanager
def docker(folder: Path, image: Path) -> Iterator[dict[str, str]]:
    """The variables for Docker with a daemon of its own, and with the image."""
    _required("dockerd")
    folder.mkdir(parents=True, exist_ok=True)
    address = f"unix://{folder}/docker.sock"
    words = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--host", address]
    words += ["--pidfile", str(folder / "pid"), "--bridge", "none", "--iptables=false", "--ip-forward=false"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "DOCKER_HOST": address, "DOCKER_BUILDKIT": "0"}
        until = time.monotonic() + PATIENCE_S
        while subprocess.run(["docker", "version"], env=variables, capture_output=True).returncode:
            assert daemon.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        _import("docker", image, variables)
        yield variables
    finally:
        daemon.terminate()
        try:
            daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
        subprocess.run(["umount", str(folder / "exec" / "netns" / "default")], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def podman(folder: Path, image: Path) -> Iterator[dict[str, str]]:
    """The variables for Podman with a storage of its own, and with the image."""
    _required("podman")
    folder.mkdir(parents=True, exist_ok=True)
    engine = ['runtime = "runc"', 'cgroup_manager = "cgroupfs"', 'events_logger = "file"']
    (folder / "containers.conf").write_text("\n".join(["[engine]", *engine]))
    places = [f'graphroot = "{folder}/graph"', f'runroot = "{folder}/run"']
    (folder / "storage.conf").write_text("\n".join(["[storage]", 'driver = "overlay"', *places]))
    (folder / "registries.conf").touch()
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }
    try:
        _import("podman", image, variables)
        yield variables
    finally:
        subprocess.run(["podman", "rm", "--all", "--force"], env=variables, capture_output=True)
        subprocess.run(["umount", str(folder / "graph" / "overlay")], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def charliecloud(folder: Path, image: Path) -> Iterator[dict[str, str]]:
    """The variables for Charliecloud with a storage of its own, and with the image."""
    _required("ch-run")
    folder.mkdir(parents=True, exist_ok=True)
    # `ch-image` is written for the Python of the system.
    path = os.pathsep.join(dict.fromkeys(["/usr/bin", *os.environ["PATH"].split(os.pathsep)]))
    variables = {"PATH": path, "HOME": str(folder), "USER": "trainer", "CH_IMAGE_STORAGE": str(folder / "images")}
    try:
        made = ["ch-image", "--no-cache", "import", str(image), IMAGE]
        done = subprocess.run(made, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done
        yield variables
    finally:
        shutil.rmtree(folder, ignore_errors=True)


ENGINES = {"docker": docker, "podman": podman}
ON_CLUSTERS = {"charliecloud": charliecloud}  # what nodes of HPC clusters have


def programs_without(folder: Path, path: str, keep: str = "") -> Path:
    """A folder with all programs of a PATH but those of container engines, except for the one to keep."""
    folder.mkdir(exist_ok=True)
    others = {engine.features.program for name, engine in engines().items() if name != keep}
    for place in path.split(os.pathsep):
        for file in Path(place).glob("*"):
            link = folder / file.name
            if file.name not in others and not link.is_symlink():
                link.symlink_to(file)
    return folder


def trust(variables: Mapping[str, str], registry: str) -> None:
    """This engine may speak to that registry without TLS; Docker may on loopback."""
    if file := variables.get("CONTAINERS_REGISTRIES_CONF"):
        with Path(file).open("a") as conf:
            conf.write(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')


USER, PASSWORD = "trainer", "not-a-secret"  # of the registries of tests
_HTPASSWD = "trainer:$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G"


@contextmanager
def registry(folder: Path, *, locked: bool = False) -> Iterator[str]:
    """The address of a registry on loopback, without TLS. `locked`: only for USER with PASSWORD."""
    _required("docker-registry")
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "htpasswd").write_text(f"{_HTPASSWD}\n")
    auth = {"auth": {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}} if locked else {}
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}}
    http = {"addr": f"127.0.0.1:{port}"}
    conf = {"version": 0.1, "log": {"level": "warn"}, "storage": storage, "http": http, **auth}
    (folder / "conf.yml").write_text(json.dumps(conf))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        words = ["docker-registry", "serve", str(folder / "conf.yml")]
        served = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert served.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        served.kill()
        served.wait()


def published(program: str, variables: Mapping[str, str], image: str, name: str) -> None:
    """Pushes an image that this engine has, under another name, which is removed here."""
    for words in (("tag", image, name), ("push", name), ("rmi", name)):
        done = subprocess.run([program, *words], env=dict(variables), capture_output=True, text=True)
        assert done.returncode == 0, done


def _required(program: str) -> None:
    assert shutil.which(program), f"the tests need {program}; try: {INSTALL}"


def _import(program: str, image: Path, variables: Mapping[str, str]) -> None:
    done = subprocess.run([program, "import", str(image), IMAGE], env=dict(variables), capture_output=True, text=True)
    assert done.returncode == 0, done


def python_image(place: Path) -> Path:
    """The root of an image, as a tar file: the Python that runs this, and a shell. Made once; nothing is downloaded."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as part, tarfile.open(part, "w") as tar:
            for name in ("tmp", "proc", "sys", "dev", "etc"):
                _add_folder(tar, name)
            for path in sorted(_contents()):
                found = os.path.realpath(path)
                tar.add(found, arcname=path.lstrip("/"), recursive=False, filter=_owned_by_root)
            for name in ("python", "python3"):
                _add_link(tar, f"usr/bin/{name}", os.path.realpath(sys.executable))
    return place


def _contents() -> set[str]:
    python = os.path.realpath(sys.executable)
    library = Path(os.__file__).parent
    modules = {
        str(one)
        for one in library.rglob("*")
        if one.is_file()
        and not (set(one.relative_to(library).parts) & _LEFT_OUT)
        and not one.relative_to(library).parts[0].startswith("config-")
    }
    programs = {path for name in _PROGRAMS if (path := shutil.which(name, path="/bin:/usr/bin"))}
    linked = programs | {python} | {one for one in modules if one.endswith(".so")}
    return modules | programs | {python} | {library for one in linked for library in _libraries(one)}


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [word for line in said.splitlines() for word in line.split() if word.startswith("/")]


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(info)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    return info
