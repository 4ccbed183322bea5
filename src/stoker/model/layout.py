"""Where everything of a workspace lies in its store: the one place that spells a key."""

from __future__ import annotations

import re

# Texts, since most programs that import this ask for none of them.
_HASH = r"[0-9a-f]{64}"
_MANIFEST = r"datasets/[^/]+/[0-9a-f]{64}\.json"
_RECORD = r"datasets/[^/]+/versions\.json"
_OF_RUNS = r"blobs/[0-9a-f]{2}/[0-9a-f]{64}|snapshots/[0-9a-f]{64}\.json|runs/[0-9a-f]{20}/[\s\S]*"


def blob(sha256: str) -> str:
    """A file of a snapshot, shared by every run that has the same file."""
    return f"blobs/{sha256[:2]}/{sha256}"


def snapshot(id: str) -> str:
    return f"snapshots/{id}.json"


def elsewhere(store: str, key: str) -> str:
    """What lies in a store other than the run's own, as its nodes name it: their access has a route for it."""
    return f"@{store}/{key}"


CONTENTS = "data/"
MANIFESTS = "datasets/"


def content(sha256: str) -> str:
    """The content of a file of a dataset, in the dataset's store; shared by all versions there that have it."""
    return f"{CONTENTS}{sha256[:2]}/{sha256}"


def content_hash(key: str) -> str | None:
    """The hash that a content is stored under; None for what is none: a folder `data` is a common thing to have."""
    name = key.rpartition("/")[2]
    return name if re.fullmatch(_HASH, name) and key == content(name) else None


def listing(run_id: str, name: str) -> str:
    """The `Manifest` of an input that a job names by its URL in a store, as it was when the run was submitted."""
    return f"runs/{run_id}/inputs/{name}.json"


def manifest(dataset: str, id: str) -> str:
    """The `Manifest` of a version, beside its content. Written once, when everything it names is there."""
    return f"{MANIFESTS}{dataset}/{id}.json"


def is_manifest(key: str) -> bool:
    return bool(re.fullmatch(_MANIFEST, key))


def dataset_record(dataset: str) -> str:
    """The versions of a dataset that lie in this store: enough to rebuild the database from."""
    return f"{MANIFESTS}{dataset}/versions.json"


def is_dataset_record(key: str) -> bool:
    return bool(re.fullmatch(_RECORD, key))


def is_ours(key: str) -> bool:
    """Stoker wrote it: not one of the files that people keep in the same store."""
    return bool(content_hash(key) or is_manifest(key) or is_dataset_record(key) or re.fullmatch(_OF_RUNS, key))


def run(run_id: str) -> str:
    return f"runs/{run_id}/"


def record(run_id: str) -> str:
    """The run as submitted and as ended: enough to rebuild the database from."""
    return f"runs/{run_id}/run.json"


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


def node_with(orders: str) -> tuple[str, int, int]:
    """The run, attempt and node that the key of some orders is about."""
    _, run_id, _, number, node, _ = orders.split("/")
    return run_id, int(number), int(node.removeprefix("node-"))


def lease(run_id: str, number: int, node: int = 0) -> str:
    """The newest `Lease` of a node, where nodes have one."""
    return f"{attempt(run_id, number)}node-{node}/lease.json"


def lease_beside(orders: str) -> str:
    return f"{orders.rsplit('/', 1)[0]}/lease.json"


def report(run_id: str, number: int, node: int = 0) -> str:
    return f"{attempt(run_id, number)}node-{node}/report.json"


def events(run_id: str, number: int, node: int = 0) -> str:
    """JSON lines of `Event`, appended by the agent."""
    return f"{attempt(run_id, number)}node-{node}/events.jsonl"


def wishes(run_id: str, number: int) -> str:
    return f"{attempt(run_id, number)}wishes.json"


def visit(run_id: str, number: int, id: str) -> str:
    """What an agent says of a visit: `out` and `err` grow, `end.json` is a `VisitEnd`, written when all is said."""
    return f"{attempt(run_id, number)}visits/{id}/"


def log(run_id: str, number: int, rank: int) -> str:
    """Every byte of a rank's stdout and stderr, in the order they were written."""
    return f"{attempt(run_id, number)}logs/{rank}.log"


def log_times(run_id: str, number: int, rank: int) -> str:
    """JSON lines `[offset, unix_seconds]`: from this offset on, the log is not older than this."""
    return f"{attempt(run_id, number)}logs/{rank}.times"


def metrics(run_id: str, number: int, node: int = 0) -> str:
    """JSON lines `{"at": unix_seconds, "step": n or null, "rank": n, "values": {name: number}}`."""
    return f"{attempt(run_id, number)}metrics-{node}.jsonl"


def outputs(run_id: str, number: int, node: int = 0) -> str:
    """The manifest of an attempt's output files: a `Snapshot`, rewritten as they grow."""
    return f"{attempt(run_id, number)}outputs-{node}.json"


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
    """Raises ValueError where it is not the key of a set."""
    attempt, number = key.rsplit("/", 1)[-1].removesuffix(".json").split("-")
    return int(attempt), int(number)


def checkpoint_files(run_id: str, node: int = 0) -> str:
    return f"{checkpoints(run_id, node)}files/"


def checkpoint_file(run_id: str, sha256: str, node: int = 0) -> str:
    """The content of a file of a checkpoint. Per run and node; sets that share it store it once."""
    return f"{checkpoint_files(run_id, node)}{sha256[:2]}/{sha256}"


def quarantined_set(run_id: str, attempt: int, number: int, node: int = 0) -> str:
    """Where a set goes that could not be put back: never read again, kept to be looked at."""
    return f"{checkpoints(run_id, node)}quarantine/{attempt:04d}-{number:08d}.json"


def fences(run_id: str, node: int = 0) -> str:
    return f"{checkpoints(run_id, node)}fences/"


def fence(run_id: str, attempt: int, node: int = 0) -> str:
    return f"{fences(run_id, node)}{attempt:04d}.json"


def fence_attempt(key: str) -> int:
    """Raises ValueError where it is not the key of a fence."""
    return int(key.rsplit("/", 1)[-1].removesuffix(".json"))
