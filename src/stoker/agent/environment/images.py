"""How an image gets onto a node: pulled from a registry, or built, and then pushed for the others. Once for all runs of
the node that need it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.environment.building import Workshop, carry_out, locked
from stoker.agent.machine.cloud import registry_login
from stoker.agent.machine.machine import NodeMachine
from stoker.containers import ContainerEngine, EngineSight, ImageSource
from stoker.model.cause import Cause
from stoker.model.orders import Orders

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
        named = hashlib.sha256(source.image.encode()).hexdigest()[:32]
        start, done = time.monotonic(), ""
        while not done:
            with locked(self.machine.environments / f"image-{named}", self.shop):
                found = self.engine.look(source.image, self.settings)
                if found.image is not None:
                    break
                done = self._made(source) if source.dockerfile else self._pulled(source.image)
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

    def _made(self, source: ImageSource) -> str:
        """Of the nodes of a gang the first one builds, and the others pull what it has pushed. Empty: it is not there
        yet."""
        shared = bool(self.orders.job.environment.registry)
        if shared:
            try:
                return self._pulled(source.image)
            except AttemptBroken as refused:
                if refused.cause != Cause.IMAGE_MISSING:
                    raise
            if self.orders.node:
                return ""
        what = f"build the image from `{Path(source.dockerfile).name}`"
        with self._settings_for(source.base) as settings:
            carry_out(self.engine.obtain(source), what, settings, self.shop)
        if shared:
            self.shop.tell("environment", f"pushing the image to `{source.image}`")
            with self._settings_for(source.image) as settings:
                carry_out(self.engine.push(source.image), f"push the image `{source.image}`", settings, self.shop)
        return "built and pushed" if shared else "built"

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
        """With the login of its registry. That is in the memory of this process, and nowhere else."""
        login = self._login(registry_of(image)) if image else None
        if login is None:
            yield self.settings
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
