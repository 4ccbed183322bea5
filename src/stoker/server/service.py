"""Everything a running server is made of, put together once and handed to the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.providers import Provider, Setup, load
from stoker.server.clock import Clock
from stoker.server.database import Database
from stoker.server.datasets import Datasets
from stoker.server.datasettable import DatasetTable
from stoker.server.ledger import Ledger
from stoker.server.performer import Performer
from stoker.server.reconciler import Reconciler
from stoker.server.settings import Settings
from stoker.server.shelf import Shelf
from stoker.server.vault import Vault
from stoker.stores import Store
from stoker.stores.folder import FolderStore


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    token: str
    clock: Clock
    started_at: datetime
    store: Store
    providers: Mapping[str, Provider]
    database: Database
    ledger: Ledger
    vault: Vault
    shelf: Shelf
    datasets: Datasets
    reconciler: Reconciler
    notices: tuple[str, ...] = ()  # what an administrator should know, such as a rebuilt database


def assemble(settings: Settings, token: str, database: Database, notices: tuple[str, ...] = ()) -> Service:
    clock = Clock()
    store = FolderStore(settings.home.store)
    providers = load(Setup(settings.home, settings.slots))
    ledger = Ledger(database, store)
    vault = Vault(settings.home.secrets)
    performer = Performer(providers, store, ledger, vault, clock)
    reconciler = Reconciler(ledger, store, providers, performer, clock)
    return Service(
        settings=settings,
        token=token,
        clock=clock,
        started_at=clock.now(),
        store=store,
        providers=providers,
        database=database,
        ledger=ledger,
        vault=vault,
        shelf=Shelf(store),
        datasets=Datasets(DatasetTable(database.engine), lambda _: store, lambda: "folder"),
        reconciler=reconciler,
        notices=notices,
    )
