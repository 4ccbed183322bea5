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

from conftest import Shell

pytestmark = pytest.mark.xdist_group("cli")


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
    assert "% of the time was waiting for it" in shown
    shell.write("ants/train/one.txt", "second")
    shell.stoker("data", "put", "./ants", "--name", "ants")
    assert "second" in shell.stoker("run").stdout
    shell.stoker("rerun", "job-1")
    assert shell.ended("job-3")["inputs"]["images"]["label"] == "ants@1"
    assert "first" in shell.stoker("logs", "job-3").stdout
    assert "ants@2" in shell.stoker("diff", "job-1", "job-2", code=None).stdout


def test_a_dataset_that_is_not_there_is_told_with_the_nearest_name(shell: Shell) -> None:
    shell.write("ants/one.txt", "first")
    shell.stoker("data", "put", "./ants", "--name", "hymenoptera")
    shell.job("ls", data={"images": {"dataset": "hymenopterra"}})
    refused = shell.stoker("run", code=2)
    assert "data.images.dataset" in refused.stderr
    assert "did you mean `hymenoptera`?" in refused.stderr


def test_a_url_in_a_job_is_fetched_and_checked(shell: Shell, files: tuple[str, Path]) -> None:
    url, folder = files
    (folder / "weights.bin").write_bytes(b"weights")
    right = hashlib.sha256(b"weights").hexdigest()
    given = {"path": f"{url}/weights.bin", "sha256": right}
    shell.job("cat ${data.w}; basename ${data.w}", data={"w": given})
    assert shell.stoker("run").stdout.split() == ["weightsweights.bin"]
    shell.job("cat ${data.w}", data={"w": {**given, "sha256": "0" * 64}})
    failed = shell.stoker("run", code=125)
    assert f"has the hash {right}, and the job says {'0' * 64}" in failed.stderr


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
