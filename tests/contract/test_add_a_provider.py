"""The page for authors of providers, followed to the letter: its code becomes a package that keeps the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "add-a-provider.md"
BLOCK = re.compile(r"^( *)```(python|toml)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, as an installation of the page's package leaves it."""
    site = tmp_path / "site"
    (site / "my_package").mkdir(parents=True)
    (site / "my_package" / "__init__.py").touch()
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    for _, kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        text = textwrap.dedent(block)
        if kind == "python" and (name := re.match(r"# (\S+\.py)\n", text)):
            (site / name[1]).write_text(text)
        elif kind == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            if "stoker.providers" in points:
                lines = "".join(f"{name} = {what}\n" for name, what in points["stoker.providers"].items())
                (info / "entry_points.txt").write_text(f"[stoker.providers]\n{lines}")
    return site


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=site, timeout=280)


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_provider_of_the_page_keeps_the_contract(site: Path) -> None:
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(site), "test_my_provider.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b8 passed, 2 skipped\b", done.stdout), "all of the contract, but for restoring and gangs"


LOADED = """
from pathlib import Path
from stoker.model.workspace.home import Home
from stoker.providers import Setup, load
print(load(Setup(Home(Path("home"))))["mine"].features.most_nodes)
"""


def test_the_entry_point_of_the_page_makes_it_known_to_stoker(site: Path) -> None:
    done = python(site, "-c", LOADED)
    assert done.stdout.strip() == "1", done.stderr


PACKED = """
import sys
from pathlib import Path
from stoker.agent.pack import pack
print(pack(Path("agents"), ("my_package.node",)))
"""
ON_A_NODE = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from stoker.agent.machine.cloud import load_cloud
cloud, heard = load_cloud("my_package.node"), threading.Event()
listener = cloud.listen("notice", lambda notice: notice and heard.set(), print)
listener.start()
open("notice", "w").close()
print(heard.wait(30))
listener.finish()
cloud.removal({"machine": "removed"}).carry_out()
"""


def test_the_plug_in_of_the_page_is_shipped_with_the_agent(site: Path) -> None:
    agent = python(site, "-c", PACKED).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ON_A_NODE, agent], capture_output=True, text=True, cwd=site, timeout=60
    )
    assert done.stdout.strip() == "True", done.stderr
    assert (site / "removed").exists()
