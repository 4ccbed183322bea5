"""The page on adding a store is followed: its code blocks make a package that is installed, found, held to the contract
and carried by agents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "add-a-store.md"
_BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.S | re.M)
_ON_A_NODE = """
import sys
sys.path[:] = [sys.argv[1], *(one for one in sys.path if "-packages" not in one)]
from stoker.stores.access import Access, Route
from stoker.stores.opening import open_access
store = open_access(Access((Route("runs/1/", sys.argv[2], "", True),)))
store.put("runs/1/report", b"done")
print(store.get("runs/1/report").decode(), sys.modules["toystore.client"].__file__)
"""


def run(*words: str, path: Path | None = None, cwd: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(path)} if path else None
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, installed into `site`."""
    project = tmp_path_factory.mktemp("toystore")
    files = dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert set(files) == {"pyproject.toml", "toystore/kind.py", "toystore/client.py", "test_toystore.py"}
    (project / "toystore").mkdir()
    (project / "toystore" / "__init__.py").write_text('"""A store in an SQLite file."""\n')
    for name, text in files.items():
        (project / name).write_text(text)
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(sys.executable, *install, "--target", str(project / "site"), str(project))
    return project


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_toy_store_of_the_page_keeps_the_contract(project: Path) -> None:
    said = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_toystore.py",
        path=project / "site",
        cwd=project,
    )
    assert re.search(r"\d{2,} passed", said)


def test_an_agent_carries_the_toy_store_of_the_page(project: Path) -> None:
    packing = "import sys; from pathlib import Path; from stoker.agent.pack import pack; print(pack(Path(sys.argv[1])))"
    agent = run(sys.executable, "-c", packing, str(project / "agents"), path=project / "site").strip()
    url = f"toy://{project}/node.db/runs/1"
    said = run(sys.executable, "-I", "-S", "-c", _ON_A_NODE, agent, url)
    assert said.split() == ["done", f"{agent}/toystore/client.pyc"]


def test_a_store_that_is_not_installed_is_unknown(project: Path) -> None:
    asking = "from stoker.stores.kinds import kinds; print(*kinds())"
    assert "toy" in run(sys.executable, "-c", asking, path=project / "site").split()
    assert "toy" not in run(sys.executable, "-c", asking).split()
