"""A shell or a node for each test, and nothing that outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentnode import CLOUD, Node
from shell import Shell, made_shell

from stoker.agent.pack import pack


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with made_shell(tmp_path) as shell:
        yield shell


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed agent, with the plug-in of a cloud."""
    return pack(tmp_path_factory.mktemp("agents"), (CLOUD,))


@pytest.fixture
def node(tmp_path: Path, agent: Path) -> Iterator[Node]:
    node = Node(tmp_path, agent)
    yield node
    node.kill()
