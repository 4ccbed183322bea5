"""Everything a running server is made of, put together once and handed to the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.providers import Provider, Setup, load
from stoker.server.accesses import Accesses
from stoker.server.arrivals import Arrivals
from stoker.server.clock import Clock
from stoker.server.database import Database
from stoker.server.datasets import Datasets
from stoker.server.datasettable import DatasetTable
from stoker.server.heritage import Heritage
from stoker.server.housekeeping import Housekeeping
from stoker.server.identity import server_id
from stoker.server.keychain import Keychain, open_keychain
from stoker.server.leases import Leases
from stoker.server.ledger import Ledger
from stoker.server.limits import LimitBook
from stoker.server.performer import Performer
from stoker.server.reconciler import Reconciler
from stoker.server.recorder import Recorder
from stoker.server.removals import Removals
from stoker.server.settings import Settings
from stoker.server.shelf import Shelves
from stoker.server.signing import Signing
from stoker.server.sizes import Weighing
from stoker.server.stores import Stores
from stoker.server.storetable import StoreTable
from stoker.server.unusedcode import UnusedCode
from stoker.server.vault import Vault
from stoker.server.visits import Visits


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    token: str
    clock: Clock
    started_at: datetime
    keychain: Keychain
    stores: Stores
    accesses: Accesses
    providers: Mapping[str, Provider]
    database: Database
    ledger: Ledger
    vault: Vault
    shelves: Shelves
    datasets: Datasets
    visits: Visits
    heritage: Heritage
    limits: LimitBook
    reconciler: Reconciler
    arrivals: Arrivals
    removals: Removals
    housekeeping: Housekeeping
    weighing: Weighing
    notices: tuple[str, ...] = ()  # what an administrator should know, such as a rebuilt database


def assemble(settings: Settings, token: str, database: Database, notices: tuple[str, ...] = ()) -> Service:
    clock = Clock()
    keychain = open_keychain(settings.home.credentials, settings.keychain)
    table = StoreTable(database.engine, settings.home.stores)
    stores = Stores(settings.home, table, keychain, used=bool(database.run_ids()))
    providers = load(Setup(settings.home, settings.slots, server_id(settings.home)))
    accesses = Accesses(
        stores, keychain, clock, settings.access_s, here=lambda name: providers[name].features.shares_files
    )
    signing = Signing(keychain)
    ledger = Ledger(database, Recorder(stores, signing))
    vault = Vault(settings.home.secrets)
    leases = Leases(providers, stores, accesses, clock)
    visits = Visits()
    heritage = Heritage(stores, clock, settings.home.root)
    performer = Performer(providers, stores, accesses, leases, ledger, vault, clock, visits, heritage.bring)
    limits = LimitBook(database)
    ledger.closed = limits.closed
    reconciler = Reconciler(ledger, stores, providers, performer, clock, limits)
    visits.told = reconciler.wake
    arrivals = Arrivals()
    shelves = Shelves(stores, arrivals)
    code = UnusedCode(shelves, arrivals, database.snapshots_in_use, database.run_ids)
    removals = Removals(ledger, database, stores, code, settings.home.environments)
    return Service(
        settings=settings,
        token=token,
        clock=clock,
        started_at=clock.now(),
        keychain=keychain,
        stores=stores,
        accesses=accesses,
        providers=providers,
        database=database,
        ledger=ledger,
        vault=vault,
        shelves=shelves,
        datasets=Datasets(DatasetTable(database.engine), stores.open, lambda: stores.workspace.name, signing),
        visits=visits,
        heritage=heritage,
        limits=limits,
        reconciler=reconciler,
        arrivals=arrivals,
        removals=removals,
        housekeeping=Housekeeping(ledger, database, removals, clock, settings.home),
        weighing=Weighing(settings.home, stores, shelves),
        notices=notices,
    )
