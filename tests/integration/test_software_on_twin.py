"""A job without `environment` on the twin: its machine gets what the script imports here, and reports what it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azuretwin import BOTH_WEATHERS, weather
from shell import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.heavy]
PATIENCE_S = 240.0  # machines are refused in hostile weather, and each is requested again after half a minute

HERE = ".".join(map(str, sys.version_info[:2]))
LIBRARY = {
    "pyproject.toml": """
        [project]
        name = "our-library"
        version = "0.3.1"
        requires-python = ">=3.9"
        dependencies = ["idna"]
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [tool.hatch.build.targets.wheel]
        packages = ["src/ours"]
    """,
    "src/ours/__init__.py": "import idna\nNAME = 'ours'\n",
}
TRAIN = """
    import importlib.metadata, os, sys
    import six
    from ours import NAME

    print(NAME, six.__version__, importlib.metadata.version("our-library"), sys.prefix)
    if os.environ.get("MORE"):
        __import__("cli" + "ck")
"""


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Whose active environment has an editable package, one from an index, and one that the script does not import."""
    root = tmp_path_factory.mktemp("software")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    variables = {**keep, "STOKER_HOME": str(root / "home"), "VIRTUAL_ENV": str(root / "venv")}
    library = Shell(root / "home", root / "library", variables)
    for path, text in LIBRARY.items():
        library.write(path, text)
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(root / "venv")], check=True)
    packages = ["six==1.16.0", "idna==3.7", "click==8.1.7", "--editable", str(library.folder)]
    subprocess.run([uv, "pip", "install", "--quiet", *packages], check=True, env=variables, cwd=root)
    (root / "project").mkdir()
    shell = Shell(root / "home", root / "project", variables)
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py")
    if request.param == "hostile":
        shell.stoker("twin", "up", *weather(request))
    yield shell
    shell.stoker("server", "stop", code=None)
    shell.stoker("twin", "down", "--forget", code=None)
    shell.wait_for(lambda: not shell.processes(), "everything to be gone")


def test_what_a_script_imports_here_is_there_and_reported(shell: Shell) -> None:
    library = shell.folder.parent / "library"
    before = sorted(path.relative_to(library) for path in library.rglob("*") if "__pycache__" not in path.parts)
    plan = json.loads(shell.stoker("plan", "--on", "azure", "--twin", "--json").stdout)["plan"]
    wheel = "our_library-0.3.1-py3-none-any.whl"
    assert plan["packages"] == ["idna==3.7", f"our-library @ wheels/{wheel}", "six==1.16.0"]
    assert f"Python {HERE}, 3 packages, less than 1 MB, installed on the machine: idna 3.7" in plan["environment"]
    assert f"uploaded, because no index has it: {wheel}" in plan["environment"]
    assert not plan["notes"] or "not installed" not in " ".join(plan["notes"])

    ran = shell.stoker("run", "--on", "azure", "--twin", "--name", "first", patience_s=PATIENCE_S)
    assert "ours 1.16.0 0.3.1 " in ran.stdout
    assert "/stoker/environments/" in ran.stdout
    facts = shell.facts("first")
    version = facts["packages"].pop("python")
    assert version.startswith(f"{HERE}.")
    assert facts["packages"] == {"idna": "3.7", "our-library": "0.3.1", "six": "1.16.0"}
    assert f"Python {version} on the node with 3 packages" in shell.stoker("show", "first").stdout
    after = sorted(path.relative_to(library) for path in library.rglob("*") if "__pycache__" not in path.parts)
    assert after == before, "nothing was built in the user's own folder"


def test_a_module_that_nobody_could_see_is_named_with_the_line_that_brings_it(shell: Shell) -> None:
    failed = shell.stoker(
        "run", "--on", "azure", "--twin", "--set", "env.MORE=1", "--name", "lost", code=1, patience_s=PATIENCE_S
    )
    line = "add the line `environment: {packages: [click]}` to the job file"
    assert f"hint: `click` is in the package `click`: install it here, and {line}" in failed.stderr
    more = ("--set", "env.MORE=1", "--set", "environment.packages=click")
    shell.stoker("run", "--on", "azure", "--twin", *more, "--name", "found", patience_s=PATIENCE_S)
    difference = json.loads(shell.stoker("diff", "lost", "found", "--json").stdout)["difference"]
    assert [(one["name"], one["first"], one["second"]) for one in difference["packages"]] == [("click", None, "8.1.7")]
    assert difference["code"] == [], "what came along is told of as packages"
