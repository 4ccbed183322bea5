"""The messages during a submission."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stoker.client.settings import from_environment
from stoker.client.submit import sending
from stoker.errors import NotFound
from stoker.model.job.job import Job


class Server:
    """Lacks everything at first, and refuses the run: the client checks again, and uploads again."""

    def __init__(self, said: list[str]) -> None:
        self.sent = 0
        self._said = said

    def post(self, path: str, body: Any) -> dict[str, Any]:
        if path == "/v1/runs":
            self.sent = 0
            raise NotFound("the store has no such snapshot")
        return {"missing": [] if self.sent else [one["sha256"] for one in body["entries"]]}

    def upload(self, path: str, chunks: Iterable[bytes]) -> None:
        assert path == "/v1/blobs" and self._said, "it is said before it is sent"
        self.sent = len(b"".join(chunks))


@pytest.mark.parametrize(("size", "lines"), [(3000, 1), (500, 0)])
def test_much_code_is_reported_once_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, lines: int
) -> None:
    monkeypatch.setattr(sending, "_LARGE_BYTES", 1000)
    (tmp_path / "train.py").write_bytes(b"#" * 100)
    (tmp_path / "corpus.txt").write_bytes(b"x" * size)
    said = [] if lines else ["nothing to say"]
    server: Any = Server(said)
    settings = from_environment({"STOKER_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "USER": "ann"})
    with pytest.raises(NotFound):
        sending.submit(Job(name="a", run="python train.py"), tmp_path, settings, server, notice=said.append)
    assert len([line for line in said if "MB as code: `corpus.txt`" in line]) == lines
