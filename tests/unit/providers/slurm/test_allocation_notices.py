"""What an agent hears inside an allocation: its time limit, and SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGENT = """
import os, signal, sys, threading, time
from pathlib import Path
from stoker.agent.notice.stopping import Stopping
from stoker.providers.slurm.node import listen
folder, lead, what = sys.argv[1:]
heard, stopping = [], Stopping()
stopping.heed_signals()
listener = listen(f"{lead}:7:{folder}", heard.append, lambda kind, text: None)
listener.start()
match what:
    case "file": Path(folder, "notice").touch()
    case "TERM": os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 10
while not heard and time.monotonic() < until: time.sleep(0.01)
while stopping.outcome is None and what == "file" and lead == "0.5" and time.monotonic() < until: time.sleep(0.01)
stays = threading.Thread(target=listener.stay, daemon=True)
stays.start(); stays.join(0.5)
print(f"{heard[0].seconds:g}", stopping.outcome, "stays" if stays.is_alive() else "leaves", flush=True)
os._exit(0)
"""


def heard(folder: Path, what: str, lead: str = "60") -> str:
    """In a process of its own: signals belong to its main thread."""
    command = [sys.executable, "-c", AGENT, str(folder), lead, what]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_the_file_of_the_batch_script_is_a_notice_of_the_time_limit(tmp_path: Path) -> None:
    assert heard(tmp_path, "file") == "60 None leaves"


def test_at_the_time_limit_the_agent_leaves_by_itself_as_evicted(tmp_path: Path) -> None:
    assert heard(tmp_path, "file", lead="0.5") == "0.5 evicted leaves"


def test_a_sigterm_is_a_notice_and_the_agent_stays_until_it_is_killed(tmp_path: Path) -> None:
    assert heard(tmp_path, "TERM") == "7 None stays"
