"""What the server gives to nodes: by which stores, credentials and jobs it is limited, and what it refuses to give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from stoker.errors import BadInput, StoreDenied, StoreFailed
from stoker.model.orders import DataOrder
from stoker.model.run.run import Attempt, AttemptState, Run
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers.azure.booting import boot_ticket, signed_url
from stoker.server.records.database import Database
from stoker.server.records.tables import StoreTable, read_copy
from stoker.server.rounds.outside import Clock
from stoker.server.stores.accesses import Accesses
from stoker.server.stores.stores import Keychain, StoreDirectory
from stoker.stores import signing
from stoker.stores.access import Access, Credential
from stoker.stores.azure.client import sas_expires_at
from stoker.stores.azure.containers import LONGEST_CONTAINER, container_of
from stoker.stores.kinds import grant, locate

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KEY = Credential("account-key", {"key": "a2V5"})
SAS = Credential("sas", {"token": "sv=1&se=2030-01-01T00:00:00Z&sp=racwdl&sig=x"})
READS = Credential("sas", {"token": "sv=1&se=2030-01-01T00:00:00Z&sp=rl&sig=x"})
NOTHING = Credential()
RUN = "0123456789abcdef0123"
SNAPSHOT = "5" * 64
Make = Callable[..., Run]


def _is_here(provider: str) -> bool:
    return provider == "local"


class World:
    """`local` is here, `cloud` is elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.home, keychain = Home(folder), Keychain(folder / "keys")
        self.table = StoreTable(Database.open(folder / "db").engine, self.home.stores)
        self.stores = StoreDirectory(self.home, self.table, keychain)
        self.accesses = Accesses(self.stores, keychain, Clock(), here=_is_here, one_engine=_is_here)

    def add(self, name: str, credential: Credential, *, shared: bool | None = None, container: str = "box") -> None:
        self.stores.add(name, f"az://account/{container}", credential, NOW, shared=shared)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run_in(make_run: Make, store: str, on: str = "cloud", **inputs: DataOrder) -> Run:
    return make_run(id=RUN, snapshot=SNAPSHOT, store=store, job={"on": on}, inputs=inputs)


def first(world: World, run: Run) -> Access:
    return Access.from_text(world.accesses.first(run, Attempt(1, f"{run.id}-1", AttemptState.ASKED, NOW))[0])


def test_a_node_that_hears_nothing_until_its_lease_is_over_can_write_all_the_while(
    world: World, make_run: Make
) -> None:
    """Whenever the server goes away, between any two renewals."""
    world.add("blob", KEY)
    run, one = run_in(make_run, "blob"), Attempt(1, f"{RUN}-1", AttemptState.ASKED, NOW)
    for lease_s in (86_400.0, 5 * 86_400.0):
        given = Access.from_text(world.accesses.first(run, one, lease_s)[0])
        renewed_in_s = world.accesses._due[one.key] - Clock().now().timestamp()
        left_s = given.expires_at - datetime.now(UTC).timestamp() - renewed_in_s
        assert left_s > lease_s + 3600
        assert given.expires_at - datetime.now(UTC).timestamp() < 6 * 86_400 + 60, "Azure signs for seven days at most"
        assert world.accesses.lasts_s(one.key) == pytest.approx(lease_s + 86_400, abs=60)
    assert world.accesses.lasts_s("another") == float("inf")


def test_a_node_is_given_its_run_its_code_its_datasets_and_the_place_of_its_next_access(
    world: World, make_run: Make
) -> None:
    world.add("blob", KEY)
    ants = DataOrder("ants@1", store="blob", dataset="ants@1", reads=(layout.dataset("ants"),))
    routes = {route.prefix: route for route in first(world, run_in(make_run, "blob", ants=ants)).routes}
    assert set(routes) == {
        layout.run(RUN),
        layout.code(SNAPSHOT),
        layout.dataset("ants"),
        layout.access(RUN, 1),
        layout.again(RUN, 1),
        layout.agent(RUN, 1),
    }
    tokens = {prefix: parse_qs(route.token) for prefix, route in routes.items()}
    assert {prefix: (token["sr"][0], token["sp"][0]) for prefix, token in tokens.items()} == {
        layout.run(RUN): ("c", "racwdl"),
        layout.code(SNAPSHOT): ("b", "r"),
        layout.dataset("ants"): ("c", "rl"),
        layout.access(RUN, 1): ("b", "r"),
        layout.again(RUN, 1): ("b", "r"),
        layout.agent(RUN, 1): ("b", "r"),
    }
    assert all(token["spr"] == ["https"] for token in tokens.values()), "never in the clear"


def test_what_stays_on_the_disk_of_a_machine_only_reads_and_outlives_the_access(world: World, make_run: Make) -> None:
    """A machine that was switched off for days opens its next orders with nothing else."""
    world.add("blob", KEY)
    access = first(world, run_in(make_run, "blob"))
    ticket = boot_ticket(access, RUN, 1)
    assert {route.prefix for route in ticket.routes} == {
        layout.access(RUN, 1),
        layout.again(RUN, 1),
        layout.agent(RUN, 1),
    }
    assert all(parse_qs(route.token)["sp"] == ["r"] for route in ticket.routes)
    assert all(sas_expires_at(route.token) > access.expires_at + 3600 for route in ticket.routes)
    url, _, token = signed_url(ticket, layout.agent(RUN, 1)).partition("?")
    assert url == f"https://account.blob.core.windows.net/box-{RUN}/attempts/1/access/agent-0.pyz"
    assert parse_qs(token)["sr"] == ["b"]


def test_what_a_node_is_told_carries_a_signature_that_it_can_check(world: World, make_run: Make) -> None:
    world.add("blob", KEY)
    attempt, key = Attempt(1, f"{RUN}-1", AttemptState.ASKED, NOW), layout.wishes(RUN, 1)
    run = run_in(make_run, "blob")
    seal, told = world.accesses.first(run, attempt)[1], world.accesses.signed(run, attempt, key, b"words")
    assert signing.opened(seal, told, key) == world.accesses.opened(run, attempt, key, told) == b"words"
    near = run_in(make_run, "folder", "local")
    assert world.accesses.signed(near, attempt, key, b"words") == b"words"


def test_a_machine_that_shares_a_sas_has_that_on_its_disk(world: World, make_run: Make) -> None:
    world.add("blob", SAS, shared=True)
    ticket = boot_ticket(first(world, run_in(make_run, "blob")), RUN, 1)
    assert [route.prefix for route in ticket.routes] == [layout.run(RUN)]


def test_a_sas_is_given_to_no_node_elsewhere_unless_somebody_allows_it(world: World, make_run: Make) -> None:
    world.add("blob", SAS)
    world.accesses.check(run_in(make_run, "blob", "local"))
    for attempt in (world.accesses.check, lambda run: first(world, run)):
        with pytest.raises(StoreDenied) as refused:
            attempt(run_in(make_run, "blob"))
        assert "--shared-with-nodes" in refused.value.hint
    world.add("blob", SAS, shared=True)
    assert first(world, run_in(make_run, "blob")).routes
    world.add("blob", SAS)
    assert world.stores.named("blob").shared, "a new SAS changes nothing of that"
    assert [one.shared for one in read_copy(world.home.stores)] == [True]
    world.add("blob", SAS, shared=False)
    with pytest.raises(StoreDenied):
        world.accesses.check(run_in(make_run, "blob"))


@pytest.mark.parametrize(("credential", "given"), [(READS, False), (NOTHING, True), (KEY, True)])
def test_nor_is_one_that_only_reads_a_dataset(
    world: World, make_run: Make, credential: Credential, given: bool
) -> None:
    """Public data is nobody's secret."""
    world.add("blob", KEY)
    world.add("lake", credential, container="lake")
    order = DataOrder("coco@1", store="lake", reads=("coco/",))
    run = run_in(make_run, "blob", coco=order)
    if given:
        assert any(route.prefix.startswith("@lake/") for route in first(world, run).routes)
    else:
        with pytest.raises(StoreDenied, match="`lake`"):
            world.accesses.check(run)


def test_files_at_the_top_of_a_bucket_would_give_all_of_it_away(world: World, make_run: Make) -> None:
    world.stores.add("lake", "s3://bucket", Credential("s3-key", {"id": "a", "secret": "b"}), NOW)
    run = run_in(make_run, "folder", "local", x=DataOrder("x@1", store="lake", reads=("",)))
    with pytest.raises(StoreDenied, match="`lake`"):
        world.accesses.check(run)


@pytest.mark.parametrize("name", ["x" * (LONGEST_CONTAINER + 1), "x" * 63, "$root", "$web"])
def test_a_container_whose_name_leaves_no_room_is_refused(world: World, name: str) -> None:
    assert LONGEST_CONTAINER == 42
    with pytest.raises(BadInput, match=r"\b42\b"):
        world.add("blob", KEY, container=name)
    assert [one.name for one in world.stores.all] == ["folder"]
    with pytest.raises(BadInput, match=r"\b42\b"):
        grant(f"az://account/{name}", KEY, reads=[], writes=[layout.run(RUN)], for_s=60)
    world.add("blob", SAS, container=name)  # which makes no others


def test_nothing_falls_back_to_a_container_that_others_have_a_token_for() -> None:
    place = locate(f"az://account/{'x' * (LONGEST_CONTAINER + 1)}")
    for key in (layout.lease(RUN, 1), layout.manifest("ants", SNAPSHOT)):
        with pytest.raises(StoreFailed, match="longer than"):
            container_of(place, key)


def test_every_kind_of_key_lies_in_a_container_of_its_own() -> None:
    place = locate(f"az://account/{'x' * LONGEST_CONTAINER}/pre")
    keys = [
        layout.lease(RUN, 1),
        layout.manifest("ants", SNAPSHOT),
        layout.manifest("bees", SNAPSHOT),
        layout.record(RUN),
        "mine/a.jpg",
    ]
    containers = [container_of(place, key)[0].container for key in keys]
    assert len(set(containers)) == len(keys)
    assert all(len(container) <= 63 for container in containers)
    assert container_of(place, layout.code(SNAPSHOT)) == container_of(place, layout.code(SNAPSHOT))
    same = [layout.record(RUN), layout.dataset_record("ants"), layout.code(SNAPSHOT), layout.blob(SNAPSHOT)]
    assert {container_of(place, key)[0].container for key in same} == {containers[3]}
    other = locate(f"az://account/{'x' * LONGEST_CONTAINER}/other")
    key = layout.manifest("ants", SNAPSHOT)
    assert container_of(place, key)[0].container != container_of(other, key)[0].container


def test_environments_are_shared_by_nodes_of_one_persons_runs_on_one_server_and_no_others(
    tmp_path: Path, world: World, make_run: Make
) -> None:
    """What a node writes is somebody else's word: it reaches nobody else's runs."""
    world.add("blob", KEY)
    job = {"on": "cloud", "environment": "requirements.txt"}
    mine, again, other = (
        make_run(id=id, store="blob", job=job, person=person)
        for id, person in ((RUN, "ada"), ("1" * 20, "ada"), ("2" * 20, "eve"))
    )
    shelf = world.accesses.shelf(mine)
    assert world.accesses.shelf(again) == shelf
    assert not world.accesses.shelf(other).startswith(shelf)
    (tmp_path / "another").mkdir()
    assert World(tmp_path / "another").accesses.shelf_of("ada") != shelf, "anybody can call themselves ada there"
    place = locate("az://account/box")
    assert container_of(place, layout.environment_head(shelf, "x"))[0] != container_of(place, layout.record(RUN))[0]
    assert container_of(place, shelf)[0] != container_of(place, world.accesses.shelf(other))[0]
    given = grant("az://account/box", KEY, reads=[], writes=[layout.run(RUN), shelf], for_s=60.0)
    assert given.route(world.accesses.shelf(other)) is None
    assert {route.prefix for route in given.routes} == {layout.run(RUN), shelf}


def test_a_run_that_builds_no_environment_or_builds_it_here_shares_none(world: World, make_run: Make) -> None:
    world.add("blob", KEY)
    assert not world.accesses.shelf(run_in(make_run, "blob"))
    assert not world.accesses.shelf(make_run(store="blob", job={"environment": "requirements.txt"}))


@pytest.mark.parametrize(
    ("environment", "shares"),
    [
        ({"dockerfile": "Dockerfile"}, True),
        ({"image": f"localhost/stoker@sha256:{'1' * 64}"}, True),  # of an earlier run
        ({"dockerfile": "Dockerfile", "registry": "registry.example.org/ants"}, False),
        ({"image": "pytorch/pytorch"}, False),
    ],
)
def test_an_image_that_is_built_is_shared_where_no_registry_has_it(
    environment: dict[str, str], shares: bool, world: World, make_run: Make
) -> None:
    world.add("blob", KEY)
    assert bool(world.accesses.shelf(make_run(store="blob", job={"on": "cloud", "environment": environment}))) is shares
    assert not world.accesses.shelf(make_run(store="blob", job={"environment": environment}))
