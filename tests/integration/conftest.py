"""A shell or a node for each test, and nothing that outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agentnode import Node
from shell import Shell

from stoker.agent.pack import pack


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    home, folder = tmp_path / "home", tmp_path / "project"
    folder.mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    environ = {**keep, "STOKER_HOME": str(home), "STOKER_SLOTS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    shell = Shell(home, folder, environ)
    yield shell
    for _ in range(50):
        left = shell.processes()
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed agent."""
    return pack(tmp_path_factory.mktemp("agents"))


@pytest.fixture
def node(tmp_path: Path, agent: Path) -> Iterator[Node]:
    node = Node(tmp_path, agent)
    yield node
    node.kill()
