"""What an agent makes of SIGTERM in a pod."""

from __future__ import annotations

import subprocess
import sys

AGENT = """
import os, signal, sys, time
from stoker.agent.notice.stopping import Stopping
from stoker.providers.kubernetes import node
heard, stopping = [], Stopping()
node.SEEN_S = 0.1
stopping.heed_signals()
listener = node.listen("45", heard.append, lambda kind, text: None)
listener.start()
listener.stay()
os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 10
while not heard and time.monotonic() < until: time.sleep(0.01)
listener.stay()
print(f"{heard[0].seconds:g}", stopping.outcome, flush=True)
os._exit(0)
"""


def test_a_sigterm_is_a_notice_that_lasts_as_long_as_the_grace_period() -> None:
    """In a process of its own: signals belong to its main thread."""
    done = subprocess.run([sys.executable, "-c", AGENT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["45", "None"]
