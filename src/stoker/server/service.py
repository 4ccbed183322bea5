"""All parts of a running server, assembled once and passed to the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.model.run.run import Run
from stoker.providers import Provider, Setup, carrying, load
from stoker.server.codeshelf import Arrivals, Shelves
from stoker.server.contents import DatasetRecords, EnvironmentRecords
from stoker.server.records.copies import FactsRecorder, Signing
from stoker.server.records.database import Database
from stoker.server.records.tables import DatasetTable, StoreTable
from stoker.server.removals import Housekeeping, Removals, UnusedCode
from stoker.server.results.figures import Weighing
from stoker.server.results.parcels import Heritage
from stoker.server.rounds.books import Books, ClusterBook, LimitBook, QueueBook, Visits
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock
from stoker.server.rounds.performer import Performer
from stoker.server.rounds.reconciler import Reconciler
from stoker.server.settings import ServerSettings, server_id
from stoker.server.stores.accesses import Accesses, Leases
from stoker.server.stores.stores import Keychain, StoreDirectory, Vault, open_keychain
from stoker.server.sweeps.book import ResultCache, SweepBook


@dataclass(frozen=True, slots=True)
class Service:
    settings: ServerSettings
    token: str
    clock: Clock
    started_at: datetime
    keychain: Keychain
    stores: StoreDirectory
    accesses: Accesses
    providers: Mapping[str, Provider]
    database: Database
    ledger: Ledger
    vault: Vault
    shelves: Shelves
    datasets: DatasetRecords
    environments: EnvironmentRecords
    visits: Visits
    heritage: Heritage
    limits: LimitBook
    clusters: ClusterBook
    sweeps: SweepBook
    results: ResultCache
    reconciler: Reconciler
    arrivals: Arrivals
    removals: Removals
    housekeeping: Housekeeping
    weighing: Weighing
    notices: tuple[str, ...] = ()  # for the administrator, such as a rebuilt database


def assemble(settings: ServerSettings, token: str, database: Database, notices: tuple[str, ...] = ()) -> Service:
    clock = Clock()
    keychain = open_keychain(settings.home.credentials, settings.keychain)
    table = StoreTable(database.engine, settings.home.stores)
    stores = StoreDirectory(settings.home, table, keychain, used=bool(database.run_ids()))
    providers = load(Setup(settings.home, settings.slots, server_id(settings.home)))
    accesses = Accesses(
        stores,
        keychain,
        clock,
        settings.access_s,
        here=lambda name: providers[name].features.shares_files,
        one_engine=lambda name: providers[name].features.shares_files and not providers[name].features.elsewhere,
        carrying=lambda name: carrying(providers[name]),
    )
    signing = Signing(keychain)
    ledger = Ledger(database, FactsRecorder(stores, signing))
    vault = Vault(settings.home.secrets)
    leases = Leases(providers, stores, accesses, clock)
    visits = Visits()
    heritage = Heritage(stores, clock, settings.home.root)
    performer = Performer(providers, stores, leases, ledger, vault, clock, visits, heritage.bring)
    limits = LimitBook(database)
    clusters, book, sweeps = ClusterBook(database, providers), QueueBook(database), SweepBook(database)

    def closed(run: Run) -> None:
        limits.closed(run)
        book.closed(run)
        sweeps.closed(run)

    ledger.closed = closed
    reconciler = Reconciler(ledger, stores, providers, performer, clock, Books(limits, clusters, sweeps, book))
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
        datasets=DatasetRecords(DatasetTable(database.engine), stores.open, lambda: stores.workspace.name, signing),
        environments=EnvironmentRecords(
            stores, accesses.shelf_of, settings.home.environments, clock, lambda: {run.id for run in ledger.open}
        ),
        visits=visits,
        heritage=heritage,
        limits=limits,
        clusters=clusters,
        sweeps=sweeps,
        results=ResultCache(),
        reconciler=reconciler,
        arrivals=arrivals,
        removals=removals,
        housekeeping=Housekeeping(ledger, database, removals, clock, settings.home),
        weighing=Weighing(settings.home, stores, shelves),
        notices=notices,
    )
