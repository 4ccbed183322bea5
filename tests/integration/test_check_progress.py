"""Whoever cuts off the tests is told where they were, and which took longest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRESS = Path(__file__).parents[2] / ".ci" / "progress.py"
COMMAND = [sys.executable, "-P", str(PROGRESS), "-p", "xdist.plugin", "-n", "1", "-p", "no:cacheprovider"]
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plug-ins of other tests take seconds to import
SCRIPT = """
import time
from pathlib import Path

def test_quick():
    time.sleep(0.2)

def test_hangs():
    Path("begun").touch()
    time.sleep(60)
"""


def test_cut_off_it_names_the_tests_that_run_and_the_slowest_so_far(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SCRIPT)
    said = tmp_path / "said"
    with said.open("w") as output:
        running = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=output, stderr=output, env=os.environ | ALONE)
    try:
        wait_for(tmp_path / "begun")
        running.send_signal(signal.SIGTERM)
        wait_for(said, "slowest so far:\n    0.2")
    finally:
        running.kill()  # its worker ends with it
        running.wait()
    lines = said.read_text().splitlines()
    (cut,) = [one for one in lines if one.startswith("CUT OFF")]
    assert "1 tests done" in cut
    assert "test_some.py::test_hangs" in cut
    assert "test_quick" not in cut
    assert lines[lines.index("slowest so far:") + 1].endswith("test_some.py::test_quick")


def wait_for(file: Path, text: str = "") -> None:
    deadline = time.monotonic() + 60
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
