"""A trivial script in an image that the engine has: Stoker, and `docker run` by hand, on a daemon of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import Command, Playback, on_terminal, workplace
from benchmarks.measure import Goal, Plan, Result, over
from benchmarks.subject import Stoker, installed
from stoker.containers import engines
from stoker.testing.engines import IMAGE, docker, python_image

SCRIPT = 'print("hello")'
BY_HAND, OURS, BARE = "docker run", "stoker run, image", "stoker run"


def run(plan: Plan) -> Result:
    """Needs Debian's docker.io (`make .services/engines`), and root."""
    result = Result("containers", versions={"stoker": installed()})
    with workplace() as place, docker(place / "engine", python_image(place / "image.tar")) as variables:
        result.versions["docker"] = engines()["docker"].look("", variables).version
        kept = {name: value for name, value in variables.items() if name != "HOME"}
        with Stoker(place / "stoker", kept) as stoker:
            words = ("docker", "run", "--rm", "--init", "--network", "host", IMAGE, "python3", "-c", SCRIPT)
            commands = [
                Command(BY_HAND, words, place, variables),
                stoker.command(BARE, "run", folder=_project(place, "bare"), before=stoker.start),
                stoker.command(OURS, "run", folder=_project(place, "image", IMAGE), before=stoker.start),
            ]
            plays = plan.interleave({command.name: _play(command) for command in commands})
    total = {name: [played.total_s for played in each] for name, each in plays.items()}
    for name, taken in total.items():
        result.add(f"{name}: total", "s", taken)
    result.add(f"{OURS}: total over {BY_HAND}", "s", over(total[OURS], total[BY_HAND]), Goal(at_most=0.3))
    result.add(f"{OURS}: total over {BARE}", "s", over(total[OURS], total[BARE]))
    return result


def _project(place: Path, name: str, image: str = "") -> Path:
    folder = place / name
    folder.mkdir()
    (folder / "train.py").write_text(f"{SCRIPT}\n", encoding="utf-8")
    wanted = f"environment: {{image: '{image}'}}\n" if image else ""
    python = "python3" if image else "python"
    (folder / "stoker.yaml").write_text(f"name: trivial\nrun: {python} train.py\n{wanted}", encoding="utf-8")
    return folder


def _play(command: Command) -> Callable[[], Playback]:
    return lambda: on_terminal(command, limit_s=120)
