"""The container of a node: the ranks run in it, and the agent stays outside.

It lives as long as its standard input is open, which only the agent holds: an agent that dies in any way takes its
container with it, and the engine removes what is left. The engine's init is its first process, so that orphans are
reaped; all that the ranks see is at the same paths as outside.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stoker import containers
from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.container.images import ImageShop
from stoker.agent.environment.building import ASK_PACKAGES, Workshop, read_packages
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.processes import family
from stoker.agent.processes.family import MARK, STANDIN, readable
from stoker.agent.processes.launch import READS, ContainerEntry
from stoker.containers import ContainerEngine, ContainerRequest, EngineSight, ImageSight, ImageSource
from stoker.containers.commandline import foreign, last_line
from stoker.files import write_whole
from stoker.model.cause import Cause
from stoker.model.job.commandline import with_notebooks
from stoker.model.job.job import Environment, Job
from stoker.model.job.sections import OWN_IMAGES
from stoker.model.orders import Orders

START_S = 120.0  # for the engine to start a container of an image that it has
END_S = 15.0  # to remove one
LOSS_S = 0.5  # between the end of a rank and that of the container that took it along
OLDEST = (3, 10)  # Python that can import stoker
PYTHON = "python"  # among the packages: its version
_READY = "stoker-ready"
# `program` is what the image must have. It tells what it found, and then waits for the agent to end.
_HOLD = """
for name in {pythons}; do
  if command -v $name >/dev/null 2>&1; then
    printf '%s\n' "python $name $($name -I -c {ask} 2>/dev/null)"
  fi
done
command -v cat >/dev/null 2>&1 || echo "lacks cat"
command -v {program} >/dev/null 2>&1 || echo "lacks {program}"
echo {ready}
while read -r line; do :; done
"""
_MOST_PIDS = Path("/proc/sys/kernel/pid_max")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")
_KEPT = ("CUDA_VISIBLE_DEVICES", "NVIDIA_", "HIP_VISIBLE_DEVICES")  # of the node's variables
_USUAL_LIMITS = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in ("nofile", "nproc", "memlock", "stack")}


class NodeContainer:
    """Of one attempt; nothing until `start`. `stop` may be called at any time, and twice."""

    def __init__(self, machine: NodeMachine, key: str) -> None:
        self._machine, self._key = machine, key
        self._engine: ContainerEngine | None = None
        self._settings: dict[str, str] = {}
        self._request: ContainerRequest | None = None
        self._held: subprocess.Popen[bytes] | None = None
        self._own: set[int] = set()
        self._inside: set[int] = set()  # of these
        self.python = ""  # the one in the image that can import stoker; empty: it has none
        self.label = ""  # what runs it, for people
        self.image = ""  # what tells it from all others
        self.environment = ""  # the id of an image that was built
        self.packages: dict[str, str] = {}  # of the Python in it

    @property
    def helpers(self) -> set[int]:
        """Its own processes, which do not belong to the script."""
        if not self._engine:
            return set()
        names = self._engine.features.attendants
        return self._own | {one.pid for one in family.look("") if one.name in names} if names else self._own

    def start(self, orders: Orders, code: Collection[str], workshop: Callable[[Mapping[str, str]], Workshop]) -> None:
        """Raises Broken with what a person can do, or Stopped. `code` are the paths of the code snapshot, from which an
        image is built."""
        wanted = orders.job.environment
        folder = self._machine.folder
        source = image_source(wanted, folder, code)
        engine, sight = self._choose(source.image)
        self._engine, self._settings = engine, containers.settings(engine, self._machine.variables)
        shop = workshop(self._settings)
        images = ImageShop(engine, self._settings, self._machine, orders, shop)
        self.environment = images.note_use(source)
        if sight.image is None:
            sight = images.obtain(source)
        assert sight.image
        if foreign(sight.image, sight):
            its, ours = sight.image.architecture, sight.architecture
            what = f"the image `{source.image}` is for {its}, and this node is {ours}"
            raise AttemptBroken(what, f"choose an image for {ours}", cause=Cause.CONTAINER_UNUSABLE)
        self.label = f"{engine.name} {sight.version}"
        own = source.image.startswith((f"{OWN_IMAGES}:", f"{OWN_IMAGES}@"))
        self.image = f"sha256:{sight.image.id}" if own else _identity(sight.image)
        shop.tell("container", f"{self.label} runs the script in `{wanted.image or wanted.dockerfile}`")
        image = sight.image.place or sight.image.id
        self._request = _request(orders, self._machine, image, sight)
        self._begin(engine, self._request, source.image)
        shop.stopping.check()

    def entry(self, orders: Orders) -> ContainerEntry:
        """How ranks and visitors get in. People get there by a file in the node's folder, without the secrets."""
        assert self._engine and self._request
        file = self._machine.folder.enter
        into = ("/bin/sh", str(file))
        enter, request = self._engine.enter, self._request
        return ContainerEntry(
            words=tuple(enter(request, READS, passed=(STANDIN,))),
            variables={**self._settings, MARK: orders.key},
            file=file,
            through=tuple(enter(request, into)),
            on_terminal=tuple(enter(request, into, terminal=True)),
            stands_in=self._engine.features.isolates,
        )

    def variables(self, job: Job) -> dict[str, str]:
        """What ranks inside get of the node's own variables. A home of their own, unless they are root's: the user's is
        not in the image."""
        own = self._machine.variables
        secrets = {*job.secrets} - {job.environment.login}
        found = {name: value for name, value in own.items() if name.startswith(_KEPT) or name in secrets}
        found |= {name: value for name, value in own.items() if name.lower().endswith("_proxy")}
        if os.getuid():
            home = self._machine.folder.home
            home.mkdir(mode=0o700, exist_ok=True)
            name = own.get("USER") or own.get("LOGNAME") or "user"
            found |= {"HOME": str(home), "USER": name, "LOGNAME": name}
        return found

    @property
    def is_up(self) -> bool:
        """Its first processes are alive: without them, all others have been killed."""
        return self._inside <= {one.pid for one in family.look("")}

    def is_lost(self) -> bool:
        """It ended while ranks were in it: somebody removed it, or its engine ended. They fail a moment before."""
        until = time.monotonic() + LOSS_S
        while self._held and self._held.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        return self._held is not None and self._held.poll() is not None

    def stop(self) -> None:
        """Returns when nothing of it runs any more."""
        held, self._held = self._held, None
        if held is None or self._engine is None:
            return
        assert held.stdin and held.stdout
        held.stdin.close()
        held.stdout.close()
        until = time.monotonic() + END_S
        while time.monotonic() < until and held.poll() is None:
            time.sleep(0.01)
        if held.poll() is None or any(one.pid in self._own for one in family.look(self._key)):
            _run(self._engine.remove(self._key), self._settings)
        self._machine.folder.container.unlink(missing_ok=True)

    def _choose(self, image: str) -> tuple[ContainerEngine, EngineSight]:
        seen = containers.survey(image, self._machine.variables)
        if not seen or seen[0].trouble:
            raise AttemptBroken(*containers.troubles(seen), cause=Cause.CONTAINER_UNUSABLE)
        return containers.engines()[seen[0].name], seen[0]

    def _begin(self, engine: ContainerEngine, request: ContainerRequest, image: str) -> None:
        """The note is written first: the cleanup after a dead agent reads it."""
        note = {"words": engine.remove(self._key), "variables": self._settings}
        write_whole(self._machine.folder.container, json.dumps(note).encode(), mode=0o600)
        _run(engine.remove(self._key), self._settings)
        errors = self._machine.folder.container_log
        with errors.open("wb") as log:
            self._held = subprocess.Popen(
                engine.start(request),
                env={**self._settings, MARK: self._key},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._held.stdout
        said = list(_lines(self._held.stdout.fileno(), START_S))
        self._own = {one.pid for one in family.belonging_to(self._key, os.getpid())}
        here = family.space(os.getpid())
        self._inside = {pid for pid in self._own if family.space(pid) not in ("", here)}
        if said[-1:] != [_READY]:
            self.stop()
            _run(engine.remove(self._key), self._settings)  # Docker keeps one that could not start
            raise AttemptBroken(
                *_explained(errors.read_text(errors="replace"), image, request), cause=Cause.CONTAINER_UNUSABLE
            )
        self._learn(said, image)

    def _learn(self, said: Sequence[str], image: str) -> None:
        for line in said:
            what, _, rest = line.partition(" ")
            if what == "lacks":
                self.stop()
                hint = "add it to the image, or choose another one"
                raise AttemptBroken(
                    f"the image `{image}` has no program `{rest}`, which the run needs",
                    hint,
                    cause=Cause.CONTAINER_UNUSABLE,
                )
            if what == "python":
                name, _, told = rest.partition(" ")
                packages = read_packages(told)
                parts = packages.get(PYTHON, "").split(".")[:2]
                new = len(parts) == 2 and all(map(str.isdigit, parts)) and tuple(map(int, parts)) >= OLDEST
                self.python = self.python or (name if new else "")
                self.packages = self.packages or packages


def _identity(image: ImageSight) -> str:
    """Its digest; of one that is in no registry, the hash of its configuration."""
    return image.digest or f"sha256:{image.id}"


def clear_container(folder: NodeFolder) -> None:
    """Removes what a dead agent left. Its processes have been killed already."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        note = json.loads(folder.container.read_bytes())
        _run(note["words"], note["variables"])
        folder.container.unlink(missing_ok=True)


def _run(words: Sequence[str], settings: Mapping[str, str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(words, env=dict(settings), stdin=subprocess.DEVNULL, capture_output=True, timeout=END_S)


def _request(orders: Orders, machine: NodeMachine, image: str, sight: EngineSight) -> ContainerRequest:
    job, folder, own = orders.job, machine.folder, (os.getuid(), os.getgid())
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = {name: resource.getrlimit(kind) for name, kind in _USUAL_LIMITS.items()}
    limits["nproc"] = _most_processes(*limits["nproc"])
    word = with_notebooks(job.run).split(maxsplit=1)[0]
    program = word if _PROGRAM.fullmatch(word) else ":"
    return ContainerRequest(
        key=orders.key,
        mark=MARK,
        image=image,
        script=_HOLD.format(program=program, pythons=_pythons(program), ask=shlex.quote(ASK_PACKAGES), ready=_READY),
        # Without root, an engine maps root inside to the user, or keeps the user's own id.
        user=None if sight.rootless and not os.getuid() else own,
        keeps_user=sight.rootless and bool(os.getuid()),
        folders=(str(folder.root),),
        inputs=tuple(dict.fromkeys([str(machine.library), *_data_folders(orders.data.values())])),
        work=str(folder.work),
        shared_bytes=whole // 2,
        limits=limits,
        gpus=bool(job.gpus or job.gpu or job.processes == "gpus"),
    )


def _most_processes(soft: int, hard: int) -> tuple[int, int]:
    """No user has more than the kernel has ids for. Podman lowers its own limit to that, and may not raise it again."""
    most = int(_MOST_PIDS.read_text())
    return tuple(most if one == resource.RLIM_INFINITY else min(one, most) for one in (soft, hard))  # type: ignore[return-value]  # a pair


def _pythons(program: str) -> str:
    """Where to look for one that can import stoker: only the script's own, where the run names it. In some images
    `python` is Python 2, and `python3` is not."""
    return program if program.rpartition("/")[2].startswith("python") else "python python3"


def _data_folders(places: Collection[str]) -> Iterator[str]:
    """Also where links in them lead."""
    for place in places:
        real = os.path.realpath(place)
        yield from dict.fromkeys((place, real))
        leads = {
            os.path.dirname(os.path.realpath(f"{top}/{name}"))  # noqa: PTH120  # one for each file of a dataset
            for top, folders, files in os.walk(real)
            for name in (*folders, *files)
            if os.path.islink(f"{top}/{name}")  # noqa: PTH114  # the same
        }
        outside = sorted(one for one in leads if one != real and not one.startswith(f"{real}/"))
        if outside:
            top = os.path.commonpath(outside)
            yield from [top] if top.count("/") > 1 else outside


def _lines(fd: int, seconds: float) -> Iterator[str]:
    """Up to the one that says that it is ready, or the end of the output."""
    until, pending = time.monotonic() + seconds, b""
    while (left := until - time.monotonic()) > 0 and readable([fd], left):
        piece = os.read(fd, 4096)
        *whole, pending = (pending + piece).split(b"\n")
        for line in whole:
            text = line.decode(errors="replace").strip()
            yield text
            if text == _READY:
                return
        if not piece:
            return


def _explained(words: str, image: str, request: ContainerRequest) -> tuple[str, str]:
    """What the engine says of a container that did not start."""
    low = words.lower()
    # Podman's init names the program that it cannot start only as `pid1`.
    if ("/bin/sh" in low or "exec pid1" in low) and ("no such file" in low or "not found" in low):
        return f"the image `{image}` has no shell `/bin/sh`, which starts the run's command", "choose one with a shell"
    if "exec format error" in low:
        return f"the image `{image}` is for another architecture", "choose an image for the node's architecture"
    if "init" in low and ("catatonit" in low or "docker-init" in low or "init binary" in low):
        return f"the engine lacks its init: {last_line(words)}", "sudo apt-get install catatonit tini"
    if request.gpus and ("device driver" in low or "nvidia" in low or "cdi" in low):
        return f"the engine has no access to GPUs: {last_line(words)}", "install nvidia-container-toolkit on the node"
    return f"the container did not start: {last_line(words) or 'its engine did not answer'}", "see `stoker logs`"


_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)


def image_source(wanted: Environment, folder: NodeFolder, code: Collection[str]) -> ImageSource:
    """Copies the context of a Dockerfile, by links. `code` are the paths of the code snapshot. The same on any node."""
    if not wanted.dockerfile:
        return ImageSource(image=wanted.image or "")
    context = "" if wanted.context in (None, ".") else f"{wanted.context}/"
    hashed = hashlib.sha256(json.dumps([wanted.dockerfile, wanted.context, dict(wanted.build_args)]).encode())
    for path in sorted(one for one in code if one.startswith(context) or one == wanted.dockerfile):
        hashed.update(json.dumps([path, *_copy(folder.work / path, folder.context / path)]).encode())
    dockerfile = folder.context / wanted.dockerfile
    bases = _FROM.findall(dockerfile.read_text(errors="replace")) if dockerfile.is_file() else []
    return ImageSource(
        image=f"{wanted.registry or OWN_IMAGES}:{hashed.hexdigest()[:32]}",
        base=wanted.registry or next(iter(bases), ""),
        dockerfile=str(dockerfile),
        context=str(folder.context / context),
        arguments=wanted.build_args,
    )


def _copy(file: Path, place: Path) -> tuple[str, ...]:
    """What counts of it, except for its path: kind and content."""
    if file.is_dir() and not file.is_symlink():
        place.mkdir(parents=True, exist_ok=True)
        return ("folder",)
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink():
        place.symlink_to(file.readlink())
        return ("link", str(file.readlink()))
    place.hardlink_to(file)
    hashed = hashlib.sha256()
    with file.open("rb") as read:
        while piece := read.read(1 << 20):
            hashed.update(piece)
    return ("file", str(file.stat().st_mode & 0o111), hashed.hexdigest())
