"""The sessions printed in the docs, run for real: what a reader sees is what they will get."""

import difflib
import importlib.util
import re
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_record", ROOT / "docs" / "record.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record = _record()


# Certification evicts at moments of its own choosing: what it prints is never the same twice.
STABLE = [page for page in record.pages() if page.name != "certify.md"]


@pytest.mark.parametrize("page", STABLE, ids=lambda page: page.name)
def test_the_recorded_commands_print_what_the_page_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fresh = record.recorded(text)
    changes = difflib.unified_diff(text.splitlines(), fresh.splitlines(), page.name, "today", lineterm="")
    assert fresh == text, "\n".join(["run `python docs/record.py`, and look at what it changes:", *changes])


def test_the_readme_and_the_quickstart_are_recordings() -> None:
    assert {"README.md", "quickstart.md"} <= {page.name for page in record.pages()}


def test_a_session_leaves_nothing_behind() -> None:
    with record.session() as shell:
        shell.run("stoker run -d --set 'run=sleep 300'")
    assert not shell.root.exists()
    mark = str(shell.root).encode()
    deadline = time.monotonic() + 10  # an agent still cleans up after its final report
    while left := [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _content(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_the_python_of_the_sdk_guide_runs_from_top_to_bottom() -> None:
    guide = (ROOT / "docs" / "guides" / "python-sdk.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.S | re.M))
    with record.session() as shell:
        (shell.folder / "guide.py").write_text(code)
        printed = shell.run("python guide.py")
    assert shell.code == 0, printed
    assert "two-moons-1 succeeded ~/first_run/outputs/two-moons-1" in printed
    assert "['loss', 'accuracy']" in printed
    assert "run-failed broken-1 failed: the script exited with code 3" in printed


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
