"""The workspaces of this computer: those whose files an administrator has handed over, and the one in use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.client import launch
from stoker.client.client import Client
from stoker.client.settings import Settings
from stoker.client.stores import Stores
from stoker.errors import BadInput, Conflict, NotFound
from stoker.model.fields import nearest
from stoker.model.handover import Handover, TeamStore, read_handover
from stoker.model.home import Home
from stoker.model.store import StoreFinding, works


@dataclass(frozen=True, slots=True)
class Joined:
    """`findings` say how its store was found; where that does not work, nothing has changed. `kept` are files of one's
    own that gave way, under their new names."""

    handover: Handover
    works: bool
    findings: tuple[StoreFinding, ...] = ()
    kept: tuple[str, ...] = ()


class Workspaces:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home: Home = settings.home

    def all(self) -> list[Handover]:
        """By name. A file that cannot be read is told of when it is asked for."""
        found = []
        for path in sorted(self._home.workspaces.glob("*.json")):
            try:
                found.append(_read(path))
            except BadInput:
                continue
        return found

    @property
    def in_use(self) -> str:
        """The name of the one in use; empty where none is."""
        try:
            return str(json.loads(self._home.workspace.read_bytes())["name"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def named(self, name: str) -> Handover:
        path = self._home.workspaces / f"{name}.json"
        if "/" in name or not path.is_file():
            near = nearest(name, [one.name for one in self.all()])
            hint = f"did you mean `{near}`?" if near else "`stoker workspace ls` lists them"
            raise NotFound(f"there is no file and no workspace called `{name}`", hint=hint)
        return _read(path)

    def read(self, word: str) -> Handover:
        """A file that was handed over, or the name of a workspace that is known."""
        path = Path(word).expanduser()
        return _read(path) if path.is_file() else self.named(word)

    def use(self, handover: Handover) -> Joined:
        """Accounts and the store of the workspace become those of this computer's server, if the store works."""
        settings = self._settings
        if not settings.local:
            raise BadInput(
                f"the server at {settings.server} has its workspace from whoever runs it", hint="unset STOKER_SERVER"
            )
        new = [name for name in handover.accounts if self._account(name) != self._wanted(handover, name)]
        self._refuse_live(new)
        launch.stop(settings)  # the next one has the login of whoever calls now
        findings = self._add(handover.store) if handover.store else ()
        if not works(findings):
            return Joined(handover, works=False, findings=findings)
        _write(self._home.workspaces / f"{handover.name}.json", handover.to_text())
        kept = tuple(filter(None, (self._give(handover, name) for name in new)))
        _write(self._home.workspace, json.dumps({"name": handover.name}))
        if new:
            launch.stop(settings)  # a server reads its accounts once
        return Joined(handover, works=True, findings=findings, kept=kept)

    def _refuse_live(self, providers: list[str]) -> None:
        """A server that looks elsewhere would take the machines of these runs for lost."""
        if not providers or launch.find(self._home) is None:
            return
        runs = Client.connect(self._settings).runs(state="active", limit=1000)
        live = [run.name for run in runs if run.job.on in providers]
        if live:
            more = f", and {len(live) - 1} more" if live[1:] else ""
            raise Conflict(
                f"{live[0]} is under way{more}: in another workspace its machine would be out of sight",
                hint=f"wait for it, or stoker cancel {live[0]}",
            )

    def _add(self, store: TeamStore) -> tuple[StoreFinding, ...]:
        stores = Stores(Client.connect(self._settings).connection)
        added = stores.add(store.name, store.url, store.credential, store.values, use=store.default)
        return added.findings

    def _account(self, provider: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file(provider).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _wanted(self, handover: Handover, provider: str) -> Mapping[str, Any]:
        """The account, with what its user has added of their own, as an ssh key, while it was of this workspace."""
        there, given = self._account(provider) or {}, handover.accounts[provider]
        return {**there, **given} if _same(there, given) else given

    def _give(self, handover: Handover, provider: str) -> str:
        """Writes a provider's account. Returns what the one of before is called now, if somebody wrote that by hand."""
        path, before = self._file(provider), self._account(provider)
        wanted, aside = self._wanted(handover, provider), ""
        if before is not None and not any(_same(before, one.accounts.get(provider, {})) for one in self.all()):
            aside = str(path.replace(path.with_suffix(".json.before")))
        _write(path, json.dumps(dict(wanted), indent=2) + "\n")
        return aside

    def _file(self, provider: str) -> Path:
        """Where a provider reads its account."""
        return self._home.root / f"{provider}.json"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """They are accounts of one workspace."""
    return bool(one) and all(one.get(word) == other.get(word) for word in ("workspace", "subscription"))


def _read(path: Path) -> Handover:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="ask your administrator for the file again") from None
    return read_handover(text, str(path))


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
