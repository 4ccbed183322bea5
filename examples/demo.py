"""`make demo`: the whole mission in one command, on this computer's twin of the cloud.

A recommender learns somebody's taste in films on a spot machine. In the middle the cloud takes the machine away. The
run goes on on another one, stops when it is good enough, and brings the model and the films back. Then comes the bill,
and nothing is left.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".demo"  # what comes back stays here, to be looked at
RUN = "films-1"
# The machine's image has this Python, with torch in it, as an image of your own would: nothing has to be installed.
PYTHON = '--set environment.python="$(which python)"'


def main() -> None:
    begun = time.monotonic()
    with terminal() as here:
        here.type("head -5 my_ratings.csv", "your taste")
        here.type("cat spot.yaml", "the job")
        with meanwhile(take_the_machine_away, here):
            here.type(f"stoker run spot.yaml --twin {PYTHON}")
        here.type(f"ls outputs/{RUN}", "what came back")
        here.type(f"stoker receipt {RUN}", "the bill")
        here.type("stoker cleanup", "what is left in the cloud")
        here.type("stoker twin down")
    shown = os.path.relpath(PLACE / "ncf" / "outputs" / RUN / "recommendations.html")
    print(f"\nThat took {time.monotonic() - begun:.0f} s. Your films as a page: {shown}")


class Terminal:
    """Types commands as a person would, in a project folder and with a home of Stoker's own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "STOKER_HOME": str(home)}

    def type(self, command: str, why: str = "") -> None:
        print(f"\n$ {command}{f'    # {why}' if why else ''}", flush=True)
        subprocess.run(command, shell=True, cwd=self._folder, env=self._env, check=True)

    def ask(self, command: str) -> str:
        """Not shown; what it says of its troubles is not, either."""
        done = subprocess.run(command, shell=True, cwd=self._folder, env=self._env, capture_output=True, text=True)
        return done.stdout


@contextmanager
def meanwhile(act: Callable[[Terminal, threading.Event], None], here: Terminal) -> Iterator[None]:
    """What somebody else does while the commands inside are typed. A failure of either is a failure."""
    over = threading.Event()
    with ThreadPoolExecutor() as others:
        acting = others.submit(act, here, over)
        try:
            yield
        finally:
            over.set()
        acting.result()


def take_the_machine_away(here: Terminal, over: threading.Event) -> None:
    """From the cloud's side, as soon as the training has something to lose."""
    while not learned_something(here):
        if over.wait(1):
            return
    here.type(f"stoker twin evict {RUN} --notice 8s", "in another terminal")


def learned_something(here: Terminal) -> bool:
    try:
        return "hr@10" in json.loads(here.ask(f"stoker show {RUN} --json"))["run"]["metrics"]
    except (ValueError, LookupError):
        return False  # there is no such run yet


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A copy of the example to work in, and a home that is gone at the end with everything that ran there."""
    shutil.rmtree(PLACE, ignore_errors=True)
    left_out = shutil.ignore_patterns("outputs", "checkpoints", "__pycache__")
    shutil.copytree(ROOT / "examples" / "ncf", PLACE / "ncf", ignore=left_out)
    with tempfile.TemporaryDirectory(prefix="stoker-demo-") as home:
        here = Terminal(PLACE / "ncf", Path(home))
        try:
            yield here
        finally:
            here.ask("stoker server stop")
            here.ask("stoker twin down --forget")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: `{error.cmd}` ended with exit code {error.returncode}")
    except KeyboardInterrupt:
        sys.exit(130)
