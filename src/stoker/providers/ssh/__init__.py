"""Nodes on hosts that the user can log in to over ssh: each is a folder and an agent of an ordinary account there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from stoker.agent.pack import pack
from stoker.containers import EngineSight
from stoker.errors import NoCapacity, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer, Pool
from stoker.providers import Setup
from stoker.providers.ssh.hosts import HostedNode, NodeRecords, SshHost, best_of, engines_of, hosts, require_engine
from stoker.providers.ssh.link import HostAnswer, HostLink, LinkSite, uploaded
from stoker.providers.ssh.tunnel import TunnelService, TunnelTokens
from stoker.stores.access import Access
from stoker.stores.kinds import kind_of, locate

NODE = "stoker.providers.ssh.node"  # shipped with the agent
LOOK_S, START_S, STOP_S = 5.0, 25.0, 50.0  # for a host to answer
LEASE_S, IDLE_S = 432_000.0, 600.0
_LONGEST_SOCKET = 70  # ssh appends a few letters to the path, and the kernel takes 107
_SIZES = ("cpus", "memory_gb", "gpus")


class SshProvider:
    # An agent that cannot reach its server keeps working; a host that is silent this long is replaced.
    features: ClassVar[Features] = Features(
        look_every_s=2.0,
        patience_s=120.0,
        peer_patience_s=30.0,
        lease_s=LEASE_S,
        idle_s=IDLE_S,
        carries_folders=True,
        containers=True,
        surveyed=True,
    )

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._server = (setup.server or hashlib.sha256(str(setup.home.root).encode()).hexdigest())[:12]
        self._records = NodeRecords(self._home.root / "ssh" / "nodes")
        self._links: dict[str, HostLink] = {}
        self._placing = threading.Lock()  # of nodes on hosts
        self._linking = threading.Lock()
        self._starting: dict[str, threading.Lock] = {}  # by key
        self._agent: Path | None = None
        self._asking = ThreadPoolExecutor(max_workers=32, thread_name_prefix="ssh")

    def offers(self, need: Need) -> list[Offer]:
        """Of all hosts together: which of them takes a node is decided at its start. A host is asked for its size only
        where a job asks for one."""
        known = self._hosts(need.pool)
        if not known and need.pool is None:  # clusters have hosts of their own: how many is not known here
            return [Offer("ssh", "host", "no host", Decimal(0), unready="no hosts are known")]
        if not known or need.size or need.region or need.gpu or need.spot:
            return []
        wanted = {name: getattr(need, name) for name in _SIZES if getattr(need, name)}
        fitting = [host for host in known if self._fits(host, wanted)]
        silent = [host.name for host in fitting if self._link(host.name).trouble]
        slots = sum(host.slots for host in fitting if host.name not in silent)
        if not fitting:
            return []
        names = ", ".join(host.name for host in fitting)
        place = f"{names} (no answer from {', '.join(silent)})" if silent else names
        size = "host" if len(fitting) == 1 else f"{len(fitting)} hosts"
        return [Offer("ssh", size, place, Decimal(0), slots)]

    def start(self, request: NodeRequest) -> None:
        with self._placing:
            mine = self._starting.setdefault(request.key, threading.Lock())
        with mine:
            self._start(request)

    def look(self) -> list[NodeSight]:
        """A host that does not answer is not gone: its nodes are what they were, with the reason."""
        nodes = self._records.all()
        names = {node.host for node in nodes if node.sent}
        answers = dict(zip(names, self._asking.map(self._look_at, names), strict=True))
        return [self._sight(node, answers.get(node.host)) for node in nodes]

    def stop(self, key: str) -> None:
        """Where the host does not answer the node is cut off from its store and stopped later; its lease ends it in any
        case."""
        node = self._records.get(key)
        if node is None:
            return
        if node.sent:
            try:
                self._link(node.host).ask("stop", STOP_S, key=key)
            except ProviderUnavailable:
                self._records.abandon(node)
                raise
        self._records.forget(key)
        self._starting.pop(key, None)
        self._service.forget(key)

    def renew(self, key: str, lease_s: float) -> None:
        node = self._records.get(key)
        if node and node.sent:
            self._link(node.host).ask("lease", key=key, seconds=lease_s)

    def engines(self, image: str, pool: Pool | None) -> list[EngineSight] | None:
        def ask(host: SshHost) -> list[EngineSight] | None:
            try:
                return engines_of(self._link(host.name), self._packed(), image)
            except ProviderFailed:
                return None

        return best_of(self._asking.map(ask, self._hosts(pool)))

    def carried(self, key: str, access: Access) -> Access:
        node = self._records.get(key)
        return self._tokens.carried(key, access, everything=node is not None and node.tunnelled)

    def close(self) -> None:
        """Hangs up. Agents work on; a server that ends need not call it."""
        for link in self._links.values():
            link.close()
        if "_service" in self.__dict__:
            self._service.close()

    # Starting

    def _start(self, request: NodeRequest) -> None:
        node = self._records.get(request.key)
        if node and node.sent:
            return self._send(node, request)
        refusals: dict[str, ProviderFailed] = {}
        while node := self._placed(request, refusals):
            try:
                return self._send(node, request)
            except ProviderFailed as error:
                now = self._records.get(request.key)
                if now and now.sent:
                    raise  # it may have been started there
                refusals[node.host] = error
                self._records.forget(request.key)
        raise self._nowhere(request, refusals)

    def _placed(self, request: NodeRequest, refusals: dict[str, ProviderFailed]) -> HostedNode | None:
        """On the host with the most room that answers; of a gang's nodes each on its own where that is possible. None:
        nowhere."""
        with self._placing:
            nodes = [node for node in self._records.all() if node.key != request.key and not node.abandoned]
            rooms = []
            for number, host in enumerate(self._hosts(request.pool)):
                there = [node for node in nodes if node.host == host.name]
                peers = sum(bool(request.gang) and node.gang == request.gang for node in there)
                if len(there) < host.slots and host.name not in refusals:
                    silent = self._link(host.name).trouble is not None
                    rooms.append((silent, peers, len(there) - host.slots, number, host))
            if not rooms:
                return None
            host = min(rooms)[-1]
            return self._records.keep(HostedNode(request.key, host.name, host.slots, request.gang))

    def _send(self, node: HostedNode, request: NodeRequest) -> None:
        link = self._link(node.host)
        link.ask("look", START_S)  # connects
        if away := _unreached(link, request):
            node = self._records.keep(replace(node, tunnelled=True))
            request = replace(request, access=self.carried(node.key, Access.from_text(request.access)).to_text())
        if link.untunnelled and "tunnel://" in request.access:
            raise ProviderFailed(
                f"the nodes of host `{node.host}` cannot reach the store{away} through its sshd: {link.untunnelled}",
                hint="allow `AllowStreamLocalForwarding` there, or use a store that the host can reach",
            )
        agent = self._packed()
        uploaded(link, agent)
        if request.need and request.need.contained:
            require_engine(link, agent)
        node = self._records.keep(replace(node, sent=True))
        try:
            link.ask("start", key=node.key, agent=agent.name, config=_config(request), slots=node.slots)
        except HostAnswer:
            self._records.keep(replace(node, sent=False))
            raise

    def _nowhere(self, request: NodeRequest, refusals: dict[str, ProviderFailed]) -> ProviderFailed:
        """Waited for, as for a market without capacity: a host may come back, and a person may repair it."""
        if not self._hosts(request.pool):
            return NotSetUp("no hosts are known", hint="stoker cluster create lab --provider ssh --hosts hosts.txt")
        if not refusals:
            return NoCapacity("every slot of the hosts is in use")
        why = "; ".join(error.message for error in refusals.values())
        hint = next((error.hint for error in refusals.values() if error.hint), "")
        return NoCapacity(f"no host can take the node: {why}", hint=hint)

    # Looking

    def _look_at(self, host: str) -> dict[str, dict[str, Any]] | ProviderFailed:
        try:
            return {row["key"]: row for row in self._link(host).ask("look", LOOK_S)["nodes"]}
        except ProviderFailed as error:
            return error

    def _sight(self, node: HostedNode, answer: dict[str, dict[str, Any]] | ProviderFailed | None) -> NodeSight:
        if not node.sent or answer is None:
            return NodeSight(node.key, NodeState.GONE, "it was not started yet", unfinished=True)
        if isinstance(answer, ProviderFailed):
            if node.abandoned:
                reason = f"{answer.message}; it is cut off from its store"
                return NodeSight(node.key, NodeState.GONE, reason, still=True)
            return NodeSight(node.key, NodeState.UP, answer.message)
        row = answer.get(node.key)
        if row is None:
            return NodeSight(node.key, NodeState.GONE, f"it is no longer on host `{node.host}`", still=True)
        until = datetime.fromtimestamp(row["lease_until"], UTC) if row["lease_until"] else None
        expired = bool(until) and row["now"] > row["lease_until"]
        if row["alive"]:
            return NodeSight(node.key, NodeState.UP, lease_until=until, expired=expired)
        unfinished = not row["begun"]
        return NodeSight(node.key, NodeState.GONE, f"{row['why']} (host `{node.host}`)", unfinished=unfinished)

    # What is known of hosts

    def _hosts(self, pool: Pool | None) -> Sequence[SshHost]:
        """Of a cluster, or of the file `ssh.hosts` in the home."""
        if pool is not None:
            return hosts(pool.settings.get("hosts", ""))
        with contextlib.suppress(OSError):
            return hosts((self._home.root / "ssh.hosts").read_text(encoding="utf-8"))
        return ()

    def _fits(self, host: SshHost, wanted: dict[str, float]) -> bool:
        """One that has not said how large it is, is asked; one that does not answer may fit."""
        if not wanted:
            return True
        link = self._link(host.name)
        if not link.facts:
            with contextlib.suppress(ProviderFailed):
                link.ask("look", LOOK_S)
        return all(link.facts.get(name, value) >= value for name, value in wanted.items())

    def _link(self, host: str) -> HostLink:
        with self._linking:
            if host not in self._links:
                self._links[host] = HostLink(host, LinkSite(self._sockets, self._server, self._service.place))
            return self._links[host]

    def _packed(self) -> Path:
        if self._agent is None or not self._agent.exists():
            self._agent = pack(self._home.agents, (NODE,))
        return self._agent

    @cached_property
    def _tokens(self) -> TunnelTokens:
        return TunnelTokens(_secret(self._home.root / "ssh" / "secret"), self._server)

    @cached_property
    def _service(self) -> TunnelService:
        return TunnelService(self._sockets / f"d{os.getpid()}-{id(self):x}", self._tokens, self._admits)

    def _admits(self, key: str) -> bool:
        node = self._records.get(key)
        return node is not None and not node.abandoned

    @cached_property
    def _sockets(self) -> Path:
        """A private folder whose path is short enough for a socket."""
        folder = self._home.root / "ssh"
        if len(str(folder)) > _LONGEST_SOCKET:
            mark = hashlib.sha256(str(self._home.root).encode()).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}-{mark}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        seen = folder.lstat()
        if seen.st_uid != os.getuid() or folder.is_symlink():
            raise ProviderFailed(f"{folder} belongs to another user", hint=f"remove it: rm -r {folder}")
        folder.chmod(0o700)
        return folder


def _unreached(link: HostLink, request: NodeRequest) -> str:
    """A store that its host cannot reach, and why; empty: there is none."""
    for endpoint in _endpoints(request):
        place = urlsplit(endpoint)
        port = place.port or (443 if place.scheme == "https" else 80)
        if why := link.ask("reach", START_S, address=place.hostname, port=port)["why"]:
            return f" at {endpoint} ({why})"
    return ""


def _endpoints(request: NodeRequest) -> list[str]:
    """Of the stores that its node speaks to itself, over the network."""
    routes = Access.from_text(request.access).routes if request.access else ()
    found = (kind_of(route.url).endpoint(locate(route.url)) for route in routes)
    return sorted({one for one in found if one.startswith("http")})


def _config(request: NodeRequest) -> dict[str, Any]:
    """As the agent's tenant reads it."""
    return {
        "store": request.store,
        "orders": request.orders,
        "lease_s": request.lease_s or LEASE_S,
        "idle_s": IDLE_S,
        "arguments": {"--cloud": NODE},
        "variables": request.variables,
        "spend": request.spend,
        "sealed": False,
    }


def _secret(file: Path) -> bytes:
    """Made once: agents keep what it has signed over a restart of the server."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as made:
            made.write(os.urandom(32))
    return file.read_bytes()
