"""A rerun in the environment that an old run really had, whatever its job asked for."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import replace
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.client.software.environments import freeze
from stoker.client.software.packages import PYTHON
from stoker.client.submit.sending import Again, register
from stoker.errors import Conflict
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.sections import LOCK
from stoker.model.run.run import Run
from stoker.model.snapshot import Entry, Snapshot


def exactly(old: Run, again: Again, connection: Connection, settings: ClientSettings) -> tuple[Run, Again]:
    """The old run with a snapshot whose lock is what its node had, and the job that installs it, with the same
    Python."""
    version = old.packages.get(PYTHON, "")
    if not version or old.job.environment.contained:
        raise Conflict(
            f"it is unknown which packages the node of `{old.name}` had",
            hint=f"without them: `stoker rerun {old.name}`",
            cause=Cause.PACKAGES_UNKNOWN,
        )
    wanted = again.job.environment
    fixed = bool(old.lock or (old.software and old.software.packages) or _is_lock(wanted.requirements or ""))
    if fixed:
        named = wanted.python if "/" in (wanted.python or "") else version
        return old, replace(again, job=replace(again.job, environment=replace(wanted, python=named)))
    lock = freeze(old, connection, settings).text
    snapshot = _with_file(old, LOCK, lock.encode(), connection)
    environment = replace(wanted, requirements=LOCK, python=version)
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    return replace(old, snapshot=snapshot, lock=sha256), replace(again, job=replace(again.job, environment=environment))


def _is_lock(name: str) -> bool:
    return name.endswith("uv.lock") or bool(re.search(r"pylock(\..+)?\.toml$", name))


def _with_file(old: Run, path: str, data: bytes, connection: Connection) -> str:
    """The id of the snapshot of a run with one more file, uploaded."""
    before = wire.from_plain(Snapshot, connection.get(f"/v1/snapshots/{old.snapshot}"))
    entry = Entry(path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    snapshot = Snapshot((*(one for one in before.entries if one.path != path), entry))
    missing = register(snapshot, connection, store=old.store)
    if missing:
        connection.upload(f"/v1/blobs?store={quote(old.store, safe='')}", _tar(entry.sha256, data))
        register(snapshot, connection, store=old.store)
    return snapshot.id


def _tar(name: str, data: bytes) -> list[bytes]:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return [room.getvalue()]
