"""What a user sees of a run's data: named in the job, pinned, planned, shown, and the same again in a rerun."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from shell import Shell

from services import KEY, Azurite
from stoker.stores.opening import open_store


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server of a folder."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_a_dataset_is_planned_read_shown_and_the_same_in_a_rerun(shell: Shell) -> None:
    shell.write("ants/train/one.txt", "first")
    shell.stoker("data", "put", "./ants", "--name", "ants")
    shell.job("cat ${data.images}/train/one.txt", source="code", data={"images": {"dataset": "ants"}})
    (shell.folder / "code").mkdir()
    assert "images: ants@1 (1 file, 5 B)" in shell.stoker("plan").stdout
    assert "first" in shell.stoker("run").stdout
    shown = shell.stoker("show").stdout
    assert "images: ants@1, linked, 1 file, 5 B" in shown
    assert "% of the time spent waiting for it" in shown
    shell.write("ants/train/one.txt", "second")
    shell.stoker("data", "put", "./ants", "--name", "ants")
    assert "second" in shell.stoker("run").stdout
    shell.stoker("rerun", "job-1")
    assert shell.ended("job-3")["inputs"]["images"]["label"] == "ants@1"
    assert "first" in shell.stoker("logs", "job-3").stdout
    assert "ants@2" in shell.stoker("diff", "job-1", "job-2", code=None).stdout


def test_a_dataset_that_is_not_there_is_reported_with_the_nearest_name(shell: Shell) -> None:
    shell.write("ants/one.txt", "first")
    shell.stoker("data", "put", "./ants", "--name", "hymenoptera")
    shell.job("ls", data={"images": {"dataset": "hymenopterra"}})
    [problem] = shell.refused("run")["problems"]
    assert (problem["field"], problem["nearest"]) == ("data.images.dataset", "hymenoptera")


def test_a_url_in_a_job_is_fetched_and_checked(shell: Shell, files: tuple[str, Path]) -> None:
    url, folder = files
    (folder / "weights.bin").write_bytes(b"weights")
    right = hashlib.sha256(b"weights").hexdigest()
    given = {"path": f"{url}/weights.bin", "sha256": right}
    shell.job("cat ${data.w}; basename ${data.w}", data={"w": given})
    assert shell.stoker("run").stdout.split() == ["weightsweights.bin"]
    shell.job("cat ${data.w}", data={"w": {**given, "sha256": "0" * 64}})
    shell.stoker("run", code=125)
    failed = shell.facts("last")
    assert failed["cause"] == "store-corrupt" and right in failed["reason"] and "0" * 64 in failed["reason"]


def test_a_file_url_is_a_path(shell: Shell) -> None:
    path = shell.write("a b.txt", "here")
    shell.job("cat ${data.x}", data={"x": path.as_uri()})
    assert shell.stoker("run").stdout == "here"


def test_runs_that_want_the_same_fetch_it_once(shell: Shell, files: tuple[str, Path]) -> None:
    url, folder = files
    (folder / "big.bin").write_bytes(b"x" * 3_000_000)
    shell.job("wc -c < ${data.w}", data={"w": f"{url}/big.bin"})
    for _ in range(3):
        shell.stoker("run", "--detach")
    ended = [shell.ended(f"job-{number}") for number in (1, 2, 3)]
    assert [one["state"] for one in ended] == ["succeeded"] * 3
    assert sum(one["data_figures"]["w"]["read_bytes"] for one in ended) == 3_000_000
    assert json.loads(shell.stoker("show", "job-1", "--json").stdout)["run"]["data_figures"]["w"]["way"] == "download"


def _add_store(shell: Shell, azurite: Azurite) -> str:
    url = azurite.new_container()
    shell.environ["BLOB_KEY"] = KEY
    shell.stoker("store", "add", "blob", url, "--key", "--from-env", "BLOB_KEY")
    return url


@pytest.mark.parametrize("mode", ["download", "mount"])
def test_a_dataset_in_azure_reaches_a_run_that_is_kept_in_a_folder(shell: Shell, azurite: Azurite, mode: str) -> None:
    _add_store(shell, azurite)
    shell.write("ants/train/one.txt", "first")
    shell.stoker("data", "put", "./ants", "--name", "ants", "--store", "blob")
    given = {"images": {"dataset": "ants", "mode": mode}}
    (shell.folder / "code").mkdir()
    shell.job("cat ${data.images}/train/one.txt", source="code", data=given)
    assert shell.stoker("run").stdout == "first"
    figures = shell.facts("job-1")["data_figures"]["images"]
    assert (figures["way"], figures["files"], figures["read_bytes"]) == (mode, 1, 5)


def test_files_in_a_store_are_named_by_their_url(shell: Shell, azurite: Azurite) -> None:
    url = _add_store(shell, azurite)
    store = open_store(url, azurite.account_key)
    store.put("coco/a/one.txt", b"one")
    store.put("coco/two.txt", b"two")
    shell.job("cat ${data.x}/a/one.txt ${data.x}/two.txt", data={"x": f"{url}/coco"})
    assert "(2 files, 6 B)" in shell.stoker("plan").stdout
    assert shell.stoker("run").stdout == "onetwo"
    shell.stoker("rerun", "job-1")
    assert shell.ended("job-2")["state"] == "succeeded"
    store.put("coco/two.txt", b"other")
    [problem] = shell.refused("rerun", "job-1")["problems"]
    assert problem["field"] == "data.x"
    shell.job("ls", data={"x": f"{url}/nothing"})
    [problem] = shell.refused("run")["problems"]
    assert problem["field"] == "data.x" and "/nothing" in problem["expected"]
    shell.job("ls", data={"x": "s3://elsewhere/coco"})
    assert "stoker store add" in shell.stoker("run", code=2).stderr
