"""How an image gets onto a node: pulled from a registry, or built, and then kept for the others in a registry or in the
store. Once for all runs of the node that need it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.container.registry import StoreRegistry, read_manifest
from stoker.agent.environment.building import Workshop, carry_out, locked, note_user
from stoker.agent.environment.packing import read_list
from stoker.agent.environment.recipe import note_built
from stoker.agent.environment.shelf import Shelf
from stoker.agent.machine.cloud import registry_login
from stoker.agent.machine.machine import NodeMachine
from stoker.containers import ContainerEngine, EngineSight, ImageSource
from stoker.containers.commandline import last_line, of_image
from stoker.errors import Malformed, StoreFailed
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.environment import HEAD_BYTES, ONLY_BUILDS, BuiltEnvironment, PackedFiles
from stoker.model.job.sections import OWN_IMAGES
from stoker.model.orders import Orders
from stoker.model.wire import dump
from stoker.model.workspace import layout

TRIES, PAUSE_S = 3, 2.0  # for a registry that cannot be reached
AWAIT_S = 5.0  # between looks for the image that another node builds
_HUB = "docker.io"
_HUB_OF_DOCKER = "https://index.docker.io/v1/"  # what Docker looks for in a file of logins


@dataclass(frozen=True, slots=True)
class ImageShop:
    """Where images of one attempt come from."""

    engine: ContainerEngine
    settings: Mapping[str, str]  # of the engine's command
    machine: NodeMachine
    orders: Orders
    shop: Workshop

    def obtain(self, source: ImageSource) -> EngineSight:
        """Raises Broken with what a person can do, or Stopped."""
        start, done = time.monotonic(), ""
        while not done:
            with locked(self._place(source), self.shop):
                found = self.engine.look(source.image, self.settings)
                if found.image is not None:
                    break
                done = self._got(source)
            if not done:  # not under the lock: the node that builds may be on this computer
                self.shop.stopping.wait(AWAIT_S)
                self.shop.stopping.check()
        if done:
            self.shop.tell("environment", f"the image was {done} in {time.monotonic() - start:.1f} s")
            found = self.engine.look(source.image, self.settings)
        if found.trouble or found.image is None:
            raise AttemptBroken(
                f"{self.engine.name} does not have the image `{source.image}`: {found.trouble}".rstrip(": "),
                cause=Cause.CONTAINER_UNUSABLE,
            )
        return found

    def note_use(self, source: ImageSource) -> str:
        """The id of an image that is built; empty for others. It stays as long as this run."""
        if not source.dockerfile:
            return ""
        with locked(self._place(source), self.shop):
            note_user(self._place(source), self.shop.key)
        return self._id(source)

    def _id(self, source: ImageSource) -> str:
        return hashlib.sha256(json.dumps([source.image, _platform()]).encode()).hexdigest()[:32]

    def _place(self, source: ImageSource) -> Path:
        return self.machine.environments / f"image-{hashlib.sha256(source.image.encode()).hexdigest()[:32]}"

    def _got(self, source: ImageSource) -> str:
        """How it got here. Empty: another node is building it."""
        if source.dockerfile:
            return self._made(source)
        return self._returned(source.image) if source.image.startswith(f"{OWN_IMAGES}@") else self._pulled(source.image)

    def _made(self, source: ImageSource) -> str:
        """Of the nodes of a gang the first one builds, and the others pull what it has pushed. Empty: it is not there
        yet."""
        if not self.orders.job.environment.registry:
            return self._made_for_store(source)
        try:
            return self._pulled(source.image)
        except AttemptBroken as refused:
            if refused.cause != Cause.IMAGE_MISSING:
                raise
        if self.orders.node:
            return ""
        self._build(source)
        self.shop.tell("environment", f"pushing the image to `{source.image}`")
        with self._settings_for(source.image) as settings:
            carry_out(self.engine.push(source.image), f"push the image `{source.image}`", settings, self.shop)
        return "built and pushed"

    def _made_for_store(self, source: ImageSource) -> str:
        """Built by one node, and restored from the store by the others."""
        shelf = self.shop.shelf
        if not shelf or self.engine.features.plain is None:
            self._build(source)
            return "built"
        shared = shelf.share(self._id(source), ImageGoods(self, shelf, source.image))
        try:
            if shared.restore():
                return "restored"
            shared.offer(self._build(source))
        except StoreFailed as failed:
            raise AttemptBroken(failed.message, failed.hint, cause=failed.cause) from None
        except BaseException:
            shared.release()
            raise
        return "built"

    def _returned(self, image: str) -> str:
        """One that was built for an earlier run: the same, and not what its Dockerfile would give today."""
        id = image.rpartition("@sha256:")[2]
        if (shelf := self.shop.shelf) and self.engine.features.plain is not None:
            for one in shelf.store.list(layout.environment_heads(shelf.prefix).rstrip("/")):
                with suppress(StoreFailed):
                    head = untrusted.fetch(BuiltEnvironment, shelf.store, one.key, HEAD_BYTES, datetime.now(UTC))
                    if head.image == id:
                        ImageGoods(self, shelf, f"{OWN_IMAGES}:{id[:32]}").bring(head)
                        return "restored"
        raise AttemptBroken(
            f"the image {id[:12]} of the earlier run is neither on this node nor in the store any more",
            "build it again: `stoker rerun` without `--exact-environment`",
            cause=Cause.IMAGE_MISSING,
        )

    def _build(self, source: ImageSource) -> BuiltEnvironment:
        start, name = time.monotonic(), Path(source.dockerfile).name
        with self._settings_for(source.base) as settings:
            carry_out(self.engine.obtain(source), f"build the image from `{name}`", settings, self.shop)
        found = self.engine.look(source.image, self.settings).image
        built = BuiltEnvironment(
            id=self._id(source),
            name=self.orders.job.name.removesuffix(ONLY_BUILDS),
            source=name,
            python="",
            platform=_platform(),
            at=datetime.now(UTC),
            built_s=round(time.monotonic() - start, 1),
            image=found.id if found else "",
        )
        self._place(source).mkdir(exist_ok=True)
        note_built(self._place(source), built)
        return built

    def _pulled(self, image: str) -> str:
        self.shop.tell("environment", f"pulling the image `{image}`")
        for left in reversed(range(TRIES)):
            try:
                with self._settings_for(image) as settings:
                    carry_out(self.engine.obtain(ImageSource(image=image)), f"pull `{image}`", settings, self.shop)
            except AttemptBroken as failed:
                known = explained(failed, image)
                if not left or known.cause != Cause.REGISTRY_UNREACHABLE:
                    raise known from None
                self.shop.stopping.wait(PAUSE_S)
            else:
                break
        return "pulled"

    @contextmanager
    def _settings_for(self, image: str) -> Iterator[Mapping[str, str]]:
        """With the login of its registry."""
        login = self._login(registry_of(image)) if image else None
        if login is None:
            yield self.settings
            return
        with self.settings_with(login, image) as settings:
            yield settings

    @contextmanager
    def settings_with(self, login: tuple[str, str], image: str) -> Iterator[Mapping[str, str]]:
        """The login is in the memory of this process, or in that of the engine's command, and nowhere else."""
        if names := [name for name in self.engine.features.login_variables if name]:
            yield {**self.settings, **dict(zip(names, login, strict=True))}
            return
        words = base64.b64encode(":".join(login).encode()).decode()
        hosts = {host: {"auth": words} for host in _names(registry_of(image))}
        kept = os.memfd_create("login")
        try:
            os.write(kept, json.dumps({"auths": hosts}).encode())
            there = f"/proc/{os.getpid()}/fd/{kept}"
            variable, file = self.engine.features.login
            with TemporaryDirectory(prefix="login-", dir=self.machine.folder.root) as folder:
                if file:
                    (Path(folder) / file).symlink_to(there)
                yield {**self.settings, variable: folder if file else there}
        finally:
            os.close(kept)

    def _login(self, registry: str) -> tuple[str, str] | None:
        """User and password: of the job's secret, or of the machine itself."""
        name = self.orders.job.environment.login
        if not name:
            return registry_login(self.machine.cloud, registry) if self.machine.cloud else None
        user, colon, password = self.machine.variables.get(name, "").partition(":")
        if not colon:
            raise AttemptBroken(
                f"the secret `{name}` is not of the form USER:PASSWORD",
                f"export {name}=USER:PASSWORD",
                cause=Cause.REGISTRY_REFUSED,
            )
        return user, password


@dataclass(frozen=True, slots=True)
class ImageGoods:
    """An image and the store, by way of a registry on loopback."""

    images: ImageShop
    shelf: Shelf
    name: str  # of the image on this node

    def bring(self, head: BuiltEnvironment) -> str:
        listed = read_list(self.shelf.store, self.shelf.prefix, head)
        if not listed.packs:
            raise Malformed(f"the list of `{head.ref}` is not that of an image")
        engine = self.images.engine
        with StoreRegistry(self.shelf.store, self.shelf.prefix, self.images.machine.folder.root) as registry:
            image = registry.image(f"sha256:{listed.packs[0]}")
            with self.images.settings_with(registry.login, image) as settings:
                try:
                    pull = engine.obtain(ImageSource(image=image, plain=True))
                    carry_out(pull, "restore the image", settings, self.images.shop)
                except AttemptBroken as failed:
                    known = explained(failed, self.name)
                    raise StoreFailed(known.message, hint=known.hint, cause=known.cause) from None
                for words in (engine.name_image(image, self.name), engine.discard(image)):
                    _told(words, settings)
            return f"{registry.moved_bytes / 1e6:,.1f} MB downloaded"

    def keep(self, head: BuiltEnvironment, *, anew: bool) -> str:
        """It may continue while the script runs: its commands do not count as the script's."""
        engine, store, prefix = self.images.engine, self.shelf.store, self.shelf.prefix
        with StoreRegistry(store, prefix, self.images.machine.folder.root, anew=anew) as registry:
            image = registry.image(head.id)
            with self.images.settings_with(registry.login, image) as settings:
                _told(engine.name_image(self.name, image), settings)
                try:
                    _told(engine.push(image, plain=True), settings)
                finally:
                    _told(engine.discard(image), settings)
            manifest = read_manifest(registry.pushed or b"")
        listed = dump(PackedFiles((), manifest.parts, (), (), ()))
        sha256 = hashlib.sha256(listed).hexdigest()
        store.put(layout.environment_list(prefix, sha256), listed)
        whole = replace(head, files=len(manifest.layers), size_bytes=manifest.size_bytes, listed=sha256)
        store.put(layout.environment_head(prefix, head.id), dump(replace(whole, image=manifest.id)))
        return f"{registry.moved_bytes / 1e6:,.1f} MB"


def _told(words: Sequence[str], settings: Mapping[str, str]) -> None:
    """Raises StoreFailed with what the engine said."""
    try:
        done = subprocess.run(words, env=dict(settings), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise StoreFailed(f"`{words[0]}` could not be started: {error.strerror}") from None
    if done.returncode:
        raise StoreFailed(f"`{words[0]} {words[1]}` failed: {last_line(done.stderr or done.stdout)}")


def _platform() -> str:
    system = os.uname()
    return f"{system.sysname.lower()}-{of_image(system.machine)}"


def registry_of(image: str) -> str:
    """The host of an image's name; of one without, that of Docker's own registry."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(first) & set(".:") or first == "localhost") else _HUB


def _names(registry: str) -> tuple[str, ...]:
    """In a file of logins."""
    return (registry, _HUB_OF_DOCKER) if registry == _HUB else (registry,)


_MEANINGS = (
    (
        r"no space left|disk quota exceeded|not enough space",
        Cause.DISK_FULL,
        "the node's disk is full",
        "remove images there, or ask for a larger disk",
    ),
    (
        r"manifest unknown|manifest for .* not found|name unknown|\bnot found\b|repository (.* )?does not exist",
        Cause.IMAGE_MISSING,
        "the registry does not have it, or hides it without a login",
        "check its name and tag, and name a login as `environment.login`",
    ),
    (
        r"unauthorized|authentication required|no basic auth|denied|forbidden|incorrect username"
        r"|status(?: code)?:? 40[13]",
        Cause.REGISTRY_REFUSED,
        "the registry refuses it",
        "name a secret of the form USER:PASSWORD as `environment.login`, or another one",
    ),
    (
        r"connection refused|no such host|timeout|timed out|deadline exceeded|connection reset|unreachable|\bEOF\b|x509"
        r"|server gave HTTP response|status(?: code)?:? 5\d\d|too many requests|toomanyrequests|temporary failure",
        Cause.REGISTRY_UNREACHABLE,
        "the registry does not answer",
        "try `docker pull` or `podman pull` there",
    ),
)


def explained(failed: AttemptBroken, image: str) -> AttemptBroken:
    """What the engine said, in words, with a cause of its own."""
    for pattern, cause, meaning, hint in _MEANINGS:
        if re.search(pattern, failed.message, re.IGNORECASE):
            said = failed.message.partition(": ")[2]
            return AttemptBroken(f"could not pull the image `{image}`: {meaning} ({said})", hint, cause=cause)
    return failed
