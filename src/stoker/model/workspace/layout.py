"""Where everything of a workspace lies in its store: the one place that spells a key."""

from __future__ import annotations

import re

# Texts, since most programs that import this ask for none of them.
_CONTENT = r"stoker/data/([^/]+)/contents/[0-9a-f]{2}/([0-9a-f]{64})"
_MANIFEST = r"stoker/data/[^/]+/[0-9a-f]{64}\.json"
_RECORD = r"stoker/records/runs/([^/]+)\.json"
_DATASET_RECORD = r"stoker/records/datasets/([^/]+)\.json"
_OURS = r"blobs/[0-9a-f]{2}/[0-9a-f]{64}|snapshots/[0-9a-f]{64}\.json|runs/[0-9a-f]{20}/[\s\S]*|stoker/[\s\S]*"

OWN = "stoker/"  # everything that is neither a run's nor the user's own


def blob(sha256: str) -> str:
    """A file of a snapshot, shared by every run that has the same file."""
    return f"blobs/{sha256[:2]}/{sha256}"


def snapshot(id: str) -> str:
    return f"snapshots/{id}.json"


def code(snapshot: str) -> str:
    """A snapshot with all of its files in one object, for nodes that reach the store over a network: a token can be for
    this object alone."""
    return f"{CODE}{snapshot}"


def elsewhere(store: str, key: str) -> str:
    """What lies in a store other than the run's own, as its nodes name it: their access has a route for it."""
    return f"@{store}/{key}"


CODE = f"{OWN}code/"
DATA = f"{OWN}data/"
ENVIRONMENTS = f"{OWN}environments/"
RECORDS = f"{OWN}records/"  # no node is given a token for them
RUN_RECORDS = f"{RECORDS}runs/"
DATASET_RECORDS = f"{RECORDS}datasets/"


def dataset(name: str) -> str:
    """Everything that a node reads of a dataset: its manifests, and the content of its files."""
    return f"{DATA}{name}/"


def contents(dataset: str) -> str:
    return f"{DATA}{dataset}/contents/"


def content(dataset: str, sha256: str) -> str:
    """The content of a file of a dataset, in the dataset's store; shared by all of its versions there."""
    return f"{contents(dataset)}{sha256[:2]}/{sha256}"


def content_hash(key: str) -> str | None:
    """The hash that a content is stored under; None for anything else."""
    found = re.fullmatch(_CONTENT, key)
    return found[2] if found and key == content(found[1], found[2]) else None


def listing(run_id: str, name: str) -> str:
    """The `Manifest` of an input that a job names by its URL in a store, as it was when the run was submitted."""
    return f"runs/{run_id}/inputs/{name}.json"


def manifest(dataset: str, id: str) -> str:
    """The `Manifest` of a version, beside its content. Written once, when everything it names is there."""
    return f"{DATA}{dataset}/{id}.json"


def environments(owner: str) -> str:
    """Everything that nodes of one owner's runs share of their environments. They read and write here."""
    return f"{ENVIRONMENTS}{owner}/"


def environment_heads(shelf: str) -> str:
    return f"{shelf}heads/"


def environment_head(shelf: str, id: str) -> str:
    """A `BuiltEnvironment`. Written when everything it names is there."""
    return f"{environment_heads(shelf)}{id}.json"


def environment_list(shelf: str, sha256: str) -> str:
    """The `PackedFiles` with this hash."""
    return f"{shelf}lists/{sha256}.json"


def environment_packs(shelf: str) -> str:
    return f"{shelf}packs/"


def environment_pack(shelf: str, name: str) -> str:
    """Contents of files, one behind the other; environments share them."""
    return f"{environment_packs(shelf)}{name}"


def environment_leases(shelf: str, id: str) -> str:
    """Who builds it: the one with the highest number, as long as it says so."""
    return f"{shelf}building/{id}/"


def environment_lease(shelf: str, id: str, number: int) -> str:
    return f"{environment_leases(shelf, id)}{number:06d}.json"


def is_manifest(key: str) -> bool:
    return bool(re.fullmatch(_MANIFEST, key))


def dataset_record(dataset: str) -> str:
    """The versions of a dataset that lie in this store, signed: enough to rebuild the database from."""
    return f"{DATASET_RECORDS}{dataset}.json"


def recorded_dataset(key: str) -> str | None:
    """The name of the dataset whose record this is; None where it is none."""
    found = re.fullmatch(_DATASET_RECORD, key)
    return found[1] if found else None


def is_ours(key: str) -> bool:
    """Stoker wrote it: not one of the files that people keep in the same store."""
    return bool(re.fullmatch(_OURS, key))


def run(run_id: str) -> str:
    return f"runs/{run_id}/"


def record(run_id: str) -> str:
    """The run as submitted and as ended, signed: enough to rebuild the database from. Not below the run itself, where
    its nodes may write."""
    return f"{RUN_RECORDS}{run_id}.json"


def recorded_run(key: str) -> str | None:
    """The id of the run whose record this is; None where it is none."""
    found = re.fullmatch(_RECORD, key)
    return found[1] if found else None


def attempt(run_id: str, number: int) -> str:
    return f"runs/{run_id}/attempts/{number}/"


def orders(run_id: str, number: int, node: int = 0) -> str:
    return f"{attempt(run_id, number)}node-{node}/orders.json"


def accesses(run_id: str, number: int) -> str:
    return f"{attempt(run_id, number)}access/"


def access(run_id: str, number: int, node: int = 0) -> str:
    """A renewed `Access`, sealed with a key that only the server and the node have."""
    return f"{accesses(run_id, number)}node-{node}"


def again(run_id: str, number: int, node: int = 0) -> str:
    """Where the machine that was had for this attempt finds the newest orders for it, sealed for it alone. Among its
    accesses, which it may read longer than anything else."""
    return f"{accesses(run_id, number)}again-{node}"


def agent(run_id: str, number: int, node: int = 0) -> str:
    """The program of the agent, for a machine that brings none."""
    return f"{accesses(run_id, number)}agent-{node}.pyz"


def node_with(orders: str) -> tuple[str, int, int]:
    """The run, attempt and node that the key of some orders is about."""
    _, run_id, _, number, node, _ = orders.split("/")
    return run_id, int(number), int(node.removeprefix("node-"))


def lease(run_id: str, number: int, node: int = 0) -> str:
    """The newest `Lease` of a node, where nodes have one."""
    return f"{attempt(run_id, number)}node-{node}/lease.json"


def boot(run_id: str, number: int, node: int = 0) -> str:
    """Written by a machine that finds its attempt begun: by the store's clock it tells what time it is."""
    return f"{attempt(run_id, number)}node-{node}/boot.json"


def lease_beside(orders: str) -> str:
    return f"{orders.rsplit('/', 1)[0]}/lease.json"


def report(run_id: str, number: int, node: int = 0) -> str:
    return f"{attempt(run_id, number)}node-{node}/report.json"


def events(run_id: str, number: int, node: int = 0) -> str:
    """JSON lines of `Event`, appended by the agent."""
    return f"{attempt(run_id, number)}node-{node}/events.jsonl"


def wishes(run_id: str, number: int, node: int = 0) -> str:
    part = f"node-{node}/" if node else ""
    return f"{attempt(run_id, number)}{part}wishes.json"


def gang(run_id: str, number: int) -> str:
    """What the nodes of an attempt tell each other."""
    return f"{attempt(run_id, number)}gang/"


def visit(run_id: str, number: int, id: str) -> str:
    """What an agent says of a visit: `out` and `err` grow, `end.json` is a `VisitEnd`, written when all is said."""
    return f"{attempt(run_id, number)}visits/{id}/"


def log(run_id: str, number: int, rank: int) -> str:
    """Every byte of a rank's stdout and stderr, in the order they were written."""
    return f"{attempt(run_id, number)}logs/{rank}.log"


def log_rank(key: str) -> int | None:
    """The rank whose log this is; None for what is none: nodes write there."""
    found = re.search(r"/logs/([0-9]{1,6})\.log\Z", key)
    return int(found[1]) if found else None


def log_times(run_id: str, number: int, rank: int) -> str:
    """JSON lines `[offset, unix_seconds]`: from this offset on, the log is not older than this."""
    return f"{attempt(run_id, number)}logs/{rank}.times"


def metrics(run_id: str, number: int, node: int = 0) -> str:
    """JSON lines `{"at": unix_seconds, "step": n or null, "rank": n, "values": {name: number}}`."""
    return f"{attempt(run_id, number)}metrics-{node}.jsonl"


def outputs(run_id: str, number: int, node: int = 0) -> str:
    """The manifest of an attempt's output files: a `Snapshot`, rewritten as they grow."""
    return f"{attempt(run_id, number)}outputs-{node}.json"


def stray(run_id: str, number: int, node: int = 0) -> str:
    """A manifest of what the script left outside its outputs and checkpoints; contents are beside those of outputs."""
    return f"{attempt(run_id, number)}stray-{node}.json"


def output(run_id: str, sha256: str) -> str:
    """The content of an output file. Per run, so that removing the run removes it."""
    return f"runs/{run_id}/outputs/{sha256[:2]}/{sha256}"


def checkpoints(run_id: str, node: int = 0) -> str:
    """Every node keeps its own, and lets go of its own. Those of the first are at the top."""
    return f"runs/{run_id}/checkpoints/node-{node}/" if node else f"runs/{run_id}/checkpoints/"


def checkpoint_sets(run_id: str, node: int = 0) -> str:
    return f"{checkpoints(run_id, node)}sets/"


def checkpoint_set(run_id: str, attempt: int, number: int, node: int = 0) -> str:
    """A `CheckpointSet`. Written once, when everything it names is there."""
    return f"{checkpoint_sets(run_id, node)}{attempt:04d}-{number:08d}.json"


def checkpoint_position(key: str) -> tuple[int, int]:
    """Raises ValueError where it is not the key of a set, spelled as `checkpoint_set` does."""
    return _number(key, r"([0-9]{4,9})-[0-9]{8,9}\.json"), _number(key, r"[0-9]{4,9}-([0-9]{8,9})\.json")


def checkpoint_files(run_id: str, node: int = 0) -> str:
    return f"{checkpoints(run_id, node)}files/"


def checkpoint_file(run_id: str, sha256: str, node: int = 0) -> str:
    """The content of a file of a checkpoint. Per run and node; sets that share it store it once."""
    return f"{checkpoint_files(run_id, node)}{sha256[:2]}/{sha256}"


def checkpoint_content(key: str) -> str | None:
    """The hash in the key of such a content; None for what is none: scripts can write there."""
    found = re.search(r"/files/([0-9a-f]{2})/(\1[0-9a-f]{62})\Z", key)
    return found[2] if found else None


def quarantined_set(run_id: str, attempt: int, number: int, node: int = 0) -> str:
    """Quarantine for a set that could not be restored: never read again, kept for inspection."""
    return f"{checkpoints(run_id, node)}quarantine/{attempt:04d}-{number:08d}.json"


def fences(run_id: str, node: int = 0) -> str:
    return f"{checkpoints(run_id, node)}fences/"


def fence(run_id: str, attempt: int, node: int = 0) -> str:
    return f"{fences(run_id, node)}{attempt:04d}.json"


def incarnation(run_id: str, attempt: int, number: int, node: int = 0) -> str:
    """The fence of an attempt's second machine, its third, and so on: the provider made it again after an eviction."""
    return f"{fences(run_id, node)}{attempt:04d}-{number:04d}.json"


def fence_mark(key: str) -> tuple[int, int]:
    """The attempt and the number of its machine. Raises ValueError where it is not the key of a fence."""
    found = re.fullmatch(r"([0-9]{4,9})(?:-([0-9]{4,9}))?\.json", key.rpartition("/")[2])
    if not found:
        raise ValueError(f"`{key}` is not such a key")
    return int(found[1]), int(found[2] or 1)


def _number(key: str, form: str) -> int:
    found = re.fullmatch(form, key.rpartition("/")[2])
    if not found:
        raise ValueError(f"`{key}` is not such a key")
    return int(found[1])
