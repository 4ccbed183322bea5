"""Mount or download, sharding, settings of the cache, and how mounting programs are called: all pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data.bringing import InputFacts, ModeChoice, choose, epochs_of, probe
from stoker.agent.data.downloading import WantedContent
from stoker.agent.data.mounts import mount_arguments
from stoker.agent.data.source import cache_settings, part_of, size_of
from stoker.model.dataset import DataFile
from stoker.model.job.job import DataMode
from stoker.stores.access import MountFolders, MountPlan, Route
from stoker.stores.kinds import kind_of

GB = 10**9
LARGE = InputFacts(
    files=80,
    size_bytes=80 * GB,
    to_fetch_bytes=80 * GB,
    to_fetch_files=80,
    room_bytes=500 * GB,
    bytes_per_s=0.4 * GB,
    latency_s=0.02,
    can_mount=True,
)


@pytest.mark.parametrize(
    ("changes", "mode", "reason"),
    [
        ({"to_fetch_bytes": 0, "to_fetch_files": 0}, "download", "it is completely in the cache of this node"),
        ({"can_mount": False, "why_not": "no FUSE"}, "download", "no FUSE; the download takes about 3 min at 400 MB/s"),
        ({"room_bytes": 10 * GB}, "mount", "80.0 GB do not fit into the 10.0 GB available on this node"),
        ({"bytes_per_s": 2 * GB}, "download", "the download takes about 40 s at 2.0 GB/s"),
        ({"epochs": 1}, "mount", "it is read once, and a download would take about 3 min at 400 MB/s"),
        ({"epochs": 25}, "download", "it is probably read 25 times; the download takes about 3 min at 400 MB/s"),
        ({}, "download", "it is probably read more than once; the download takes about 3 min at 400 MB/s"),
        (
            {"bytes_per_s": 0.05 * GB},
            "mount",
            "a download would take about 27 min at 50 MB/s; blocks that were read stay on the disk",
        ),
        (
            {"files": 10**6, "to_fetch_files": 10**6, "epochs": 1},
            "download",
            "1,000,000 files of 80 kB: opening each over the network costs 20 ms; "
            "the download takes about 24 min at 400 MB/s",
        ),
    ],
)
def test_auto_chooses_and_says_why(changes: dict[str, Any], mode: str, reason: str) -> None:
    assert choose(replace(LARGE, **changes)) == ModeChoice(DataMode(mode), reason)


@given(
    st.builds(
        InputFacts,
        files=st.integers(0, 10**7),
        size_bytes=st.integers(0, 10**15),
        to_fetch_bytes=st.integers(0, 10**15),
        to_fetch_files=st.integers(0, 10**7),
        room_bytes=st.integers(0, 10**15),
        bytes_per_s=st.floats(0, 1e11),
        latency_s=st.floats(0, 10),
        can_mount=st.booleans(),
        epochs=st.none() | st.integers(1, 1000),
    )
)
def test_auto_never_mounts_what_it_cannot_and_never_downloads_what_does_not_fit(facts: InputFacts) -> None:
    choice = choose(facts)
    assert choice.reason
    if not facts.can_mount or not facts.to_fetch_files:
        assert choice.mode is DataMode.DOWNLOAD
    elif facts.to_fetch_bytes > facts.room_bytes:
        assert choice.mode is DataMode.MOUNT


@pytest.mark.parametrize(
    ("command", "epochs"),
    [
        ("python train.py --epochs 25", 25),
        ("python train.py --num_epochs=3 --lr 1", 3),
        ("python train.py --num-train-epochs 7", 7),
        ("python train.py --max_epochs 2", 2),
        ("python train.py --epochs $N", None),
        ("python epochs.py", None),
    ],
)
def test_epochs_are_read_from_the_command(command: str, epochs: int | None) -> None:
    assert epochs_of(command) == epochs


@given(st.lists(st.text("ab/c", min_size=1), unique=True, max_size=30), st.integers(1, 7))
def test_parts_are_all_of_it_once_and_nearly_equal(paths: list[str], nodes: int) -> None:
    files = [DataFile(path, 1, "0" * 64) for path in paths]
    parts = [part_of(files, node, nodes) for node in range(nodes)]
    assert sorted(file.path for part in parts for file in part) == sorted(paths)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == [part_of(list(reversed(files)), node, nodes) for node in range(nodes)]


def test_a_probe_reads_little_and_measures_both() -> None:
    asked: list[tuple[str, int, int]] = []

    def get(key: str, start: int, size: int) -> bytes:
        asked.append((key, start, size))
        return b"x" * size

    speed, latency_s = probe(get, [WantedContent("a", 10, "small", "a"), WantedContent("b", 10**9, "large", "b")])
    assert speed > 0
    assert latency_s >= 0
    assert {key for key, _, _ in asked} == {"large"}
    assert sum(size for _, _, size in asked) <= 8 << 20 | 3


@pytest.mark.parametrize(
    ("text", "size"), [("100GB", 100 * GB), ("1.5 TB", 1500 * GB), ("512MiB", 512 << 20), ("7", 7), ("2kb", 2000)]
)
def test_a_limit_is_written_as_people_write_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["much", "-1GB", "1XB", "GB"])
def test_a_limit_that_is_none_is_reported(text: str) -> None:
    with pytest.raises(AttemptBroken, match=f"STOKER_CACHE_LIMIT.*`{text}`"):
        size_of(text)


def test_the_cache_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    assert cache_settings({}, tmp_path).root == tmp_path
    assert cache_settings({"STOKER_CACHE": "/data/cache", "STOKER_CACHE_LIMIT": "1GB"}, tmp_path).root == Path(
        "/data/cache"
    )
    # Of several, memory is faster than any disk.
    both = f"{tmp_path}:/dev/shm/cache"
    assert cache_settings({"STOKER_CACHE": both}, tmp_path).root == Path("/dev/shm/cache")
    with pytest.raises(AttemptBroken, match="STOKER_CACHE"):
        cache_settings({"STOKER_CACHE": "here"}, tmp_path)


def plan_for(program: str, route: Route, blocks_bytes: int = 10 * GB) -> MountPlan:
    (found,) = (one for one in kind_of(route.url).mounts() if one.name == program)
    return found.plan(f"/bin/{program}", route, FOLDERS, blocks_bytes)


FOLDERS = MountFolders(Path("/n/1"), Path("/n/1-blocks"), Path("/n/1.sock"))


def test_rclone_gets_a_sas_by_its_environment_alone() -> None:
    route = Route("@b/data/", "https://acc.blob.core.windows.net/cont/pre/data", "sv=1&sig=secret")
    plan = plan_for("rclone", route)
    assert plan.argv[:4] == ("/bin/rclone", "mount", "data:cont/pre/data", "/n/1")
    assert "--read-only" in plan.argv
    assert not any("secret" in word for word in plan.argv)
    assert plan.env == {
        "RCLONE_CONFIG_DATA_TYPE": "azureblob",
        "RCLONE_CONFIG_DATA_SAS_URL": "https://acc.blob.core.windows.net/cont?sv=1&sig=secret",
    }


def test_rclone_gets_keys_for_s3() -> None:
    route = Route("@b/", "s3://bucket/pre?endpoint=http://127.0.0.1:9&region=eu", '["id", "secret", "session"]')
    plan = plan_for("rclone", route, 0)
    assert plan.argv[2] == "data:bucket/pre"
    assert plan.env["RCLONE_CONFIG_DATA_SESSION_TOKEN"] == "session"
    assert plan.env["RCLONE_CONFIG_DATA_ENDPOINT"] == "http://127.0.0.1:9"
    assert not any("secret" in word for word in plan.argv)


def test_blobfuse2_gets_a_sas_by_its_environment_alone() -> None:
    route = Route("@b/data/", "https://acc.blob.core.windows.net/cont/pre/data", "sig=secret")
    plan = plan_for("blobfuse2", route)
    assert plan.argv[:3] == ("/bin/blobfuse2", "mount", "/n/1")
    assert {"--read-only", "--foreground", "--block-cache", "--subdirectory=pre/data"} <= set(plan.argv)
    assert not any("secret" in word for word in plan.argv)
    assert plan.env["AZURE_STORAGE_SAS_TOKEN"] == "sig=secret"
    assert plan.env["AZURE_STORAGE_ACCOUNT_CONTAINER"] == "cont"


def test_the_kernel_is_given_what_fusermount_would_give_it() -> None:
    options = ["ro", "fsname=data:", "subtype=rclone", "max_read=131072", "allow_other", "auto_unmount"]
    assert mount_arguments(options, 7) == (
        "fuse.rclone",
        "data:",
        1 | 2 | 4,
        "fd=7,rootmode=40000,user_id=0,group_id=0,max_read=131072,allow_other",
    )
