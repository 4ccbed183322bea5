"""Where everything of one user lies on this computer, below `STOKER_HOME`: the one place that spells a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def address(self) -> Path:
        """Where the running server is, and the token it asks for. Mode 0600; written last when it starts."""
        return self.root / "server.json"

    @property
    def socket(self) -> Path:
        """Where the running server listens for this user's commands. Mode 0600, and nobody else enters the home."""
        return self.root / "server.sock"

    @property
    def start_lock(self) -> Path:
        """Held by whoever is starting a server, so that ten first commands start one."""
        return self.root / "server.start"

    @property
    def alive_lock(self) -> Path:
        """Held by the server as long as it lives."""
        return self.root / "server.alive"

    @property
    def server_id(self) -> Path:
        """What tells this server from any other, wherever it leaves its mark. Made once, and kept."""
        return self.root / "server.id"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def database(self) -> Path:
        return self.root / "stoker.db"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def stores(self) -> Path:
        """A copy of what the database knows of stores, for when it is lost. No secrets."""
        return self.root / "stores.json"

    @property
    def credentials(self) -> Path:
        """Credentials of stores where the system has no keyring. Mode 0600."""
        return self.root / "credentials.json"

    @property
    def workspaces(self) -> Path:
        """The files that administrators have handed over, by the name of their workspace. No secrets."""
        return self.root / "workspaces"

    @property
    def workspace(self) -> Path:
        """Which of them is in use."""
        return self.root / "workspace.json"

    @property
    def secrets(self) -> Path:
        """One 0600 file per run that has secrets and has not ended."""
        return self.root / "secrets"

    @property
    def nodes(self) -> Path:
        """One folder per local node: its lock, its agent's log, the working directory."""
        return self.root / "nodes"

    @property
    def environments(self) -> Path:
        return self.root / "environments"

    @property
    def software(self) -> Path:
        """Lists of packages that runs took along, what is known of them, and wheels of packages that no index has."""
        return self.root / "software"

    @property
    def cache(self) -> Path:
        """Contents of datasets that runs on this computer have read, unless STOKER_CACHE names another place."""
        return self.root / "cache"

    @property
    def prune_rule(self) -> Path:
        """Which runs the server removes by itself; absent: none."""
        return self.root / "prune.json"

    @property
    def trees(self) -> Path:
        """What the files of known source trees hashed to, by size and time."""
        return self.root / "trees"

    @property
    def twin(self) -> Path:
        """The simulated cloud: its memory, its machines, and `twin.json` as long as it runs."""
        return self.root / "twin"

    @property
    def azurite(self) -> Path:
        """Where npm installs the twin's Blob service. Not in the twin's own folder: that may be told to forget."""
        return self.root / "azurite"

    @property
    def prices(self) -> Path:
        """What clouds last said that things cost, each with its date."""
        return self.root / "prices"

    @property
    def agents(self) -> Path:
        """Packed agents, by the hash of their code."""
        return self.root / "agents"


# How a server shows that it knows the token, before a client sends it: by its answer to a number that is new.

LEAST_NONCE, MOST_NONCE = 16, 128


def proof(token: str, nonce: str) -> str:
    """Whoever does not know the token cannot make it, and learns nothing of the token from it."""
    import hmac  # with OpenSSL behind it: clients need it only where a server listens on TCP

    return hmac.new(token.encode(), f"stoker server {nonce}".encode(), "sha256").hexdigest()
