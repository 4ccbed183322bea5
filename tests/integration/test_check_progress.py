"""Whoever cuts off the tests is told where they were, and which took longest. Started in the background they are the
same tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRESS = Path(__file__).parents[2] / ".ci" / "progress.py"
COMMAND = [sys.executable, "-P", str(PROGRESS), "-p", "xdist.plugin", "-n", "1", "-p", "no:cacheprovider"]
BACKGROUND = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)  # what a shell has its background jobs ignore
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


def test_a_process_that_a_test_starts_hears_every_signal() -> None:
    done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    ignored = int(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("SigIgn")), 16)
    assert not [number.name for number in BACKGROUND if ignored & 1 << (number - 1)]


def test_a_process_that_a_test_starts_hears_every_signal_also_where_the_tests_run_in_the_background() -> None:
    inside = f"{Path(__file__).name}::{test_a_process_that_a_test_starts_hears_every_signal.__name__}"
    ignoring = ["sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh"]
    words = [*ignoring, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", inside]
    done = subprocess.run(words, cwd=Path(__file__).parent, env=os.environ | ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_for(file: Path, text: str = "") -> None:
    deadline = time.monotonic() + 60
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
