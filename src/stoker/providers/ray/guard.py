"""What watches over one agent on a node of a Ray cluster, and outlives the Ray worker that started it: however that
ends, nothing of the agent is left.

Sent as text, and run by the Python of the node's Ray: the standard library, and nothing of Stoker.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

EVERY_S = 0.05
UNSHIPPED = 3  # the exit code of `end` while the store is unreachable
SHIP_S = 600.0  # to upload what a killed agent has left
END_S = 30.0


def main(life: int, done: int, given: int) -> None:
    """`life` is a pipe that ends with the worker, `done` the one that says how the agent ended, and `given` an unnamed
    file, because the settings contain secrets."""
    if os.fork():
        os._exit(0)  # Ray kills the children of a worker that ends: this is none
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(given, "rb") as file:
        file.seek(0)
        settings = json.loads(file.read())
    code = _watched(settings, life)
    _end(settings)
    with os.fdopen(done, "w") as said:
        said.write(str(code))


def _watched(settings: dict, life: int) -> int:  # type: ignore[type-arg]  # also run by older Pythons
    """Until the agent ends, or has to: its exit code."""
    variables = os.memfd_create("variables")
    os.write(variables, json.dumps(settings["variables"]).encode())
    mark = ["env", f"STOKER_NODE_KEY={settings['key']}"]
    words = [*mark, sys.executable, "-I", "-S", settings["agent"], "run", *settings["options"]]
    agent = subprocess.Popen(
        [*words, "--variables-fd", str(variables)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(variables,),
        start_new_session=True,
    )
    os.close(variables)
    while agent.poll() is None:
        if select.select([life], [], [], EVERY_S)[0]:
            agent.kill()
            agent.wait()
    return agent.returncode


def _end(settings: dict) -> None:  # type: ignore[type-arg]  # also run by older Pythons
    """Ends what the agent had started, and uploads its last lines."""
    words = [sys.executable, "-I", "-S", settings["agent"], "end", "--folder", settings["folder"]]
    until = time.monotonic() + SHIP_S
    while time.monotonic() < until:
        try:
            ended = subprocess.run(
                [*words, "--key", settings["key"]],
                timeout=END_S,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if ended.returncode != UNSHIPPED:
                break
        except subprocess.TimeoutExpired:
            pass
        time.sleep(1)
    shutil.rmtree(settings["folder"], ignore_errors=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:4]))
