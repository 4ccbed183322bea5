"""Runs in containers: the same run as without one, with real engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import Shell, made_shell

from stoker.model.cause import Cause
from stoker.testing.engines import ENGINES, IMAGE, marked, programs_without, python_image

pytestmark = pytest.mark.heavy
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"

TRAIN = """
    import os, random, sys, time
    from stoker.checkpoint import Checkpoint
    from pathlib import Path
    state = Path("checkpoints/state")
    step, seed = map(int, state.read_text().split()) if state.exists() else (0, 1)
    print("from", step, "uid", os.getuid(), flush=True)
    while step < int(sys.argv[1]):
        step, seed = step + 1, seed * 1103515245 % (1 << 31) + 1
        print(f"step {step} loss {1 / step:.4f}", flush=True)
        Path("part").write_text(f"{step} {seed}")
        os.replace("part", state)
        while "waits" in sys.argv and step == 10 * int(os.environ["STOKER_ATTEMPT"]) < 30:
            time.sleep(0.05)  # for its eviction
    Path("outputs/model").write_text(f"{step} {seed}")
"""


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ENGINES[request.param](tmp_path_factory.mktemp("e") / "e", python_image(KEPT)) as variables:
        yield {**variables, "NAME": request.param}


@pytest.fixture
def boxed(tmp_path: Path, engine: dict[str, str]) -> Iterator[Shell]:
    """A user whose computer has this engine alone."""
    with made_shell(tmp_path) as shell:
        programs = programs_without(tmp_path / "bin", engine["PATH"], keep=engine["NAME"])
        shell.environ |= {**engine, "PATH": str(programs)}
        shell.write("train.py", TRAIN)
        yield shell


def containers(shell: Shell) -> list[str]:
    listed = [shell.environ["NAME"], "ps", "--all", "--quiet"]
    return subprocess.run(listed, env=shell.environ, capture_output=True, text=True, check=True).stdout.split()


def prints(shell: Shell, run: str, text: str) -> None:
    shell.wait_for(lambda: text in shell.stoker("logs", run, code=None).stdout, f"{text} of {run}")


def test_a_run_in_an_image_evicted_twice_ends_with_the_same_bits_as_one_without(boxed: Shell) -> None:
    boxed.job("python train.py 40")
    boxed.stoker("run")
    boxed.job("python train.py 40 waits", environment={"image": IMAGE})
    boxed.stoker("run", "--detach")
    for step in (10, 20):
        prints(boxed, "job-2", f"step {step} ")
        boxed.stoker("evict", "job-2", "--notice", "2s")
    facts = boxed.ended("job-2")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 3), facts
    boxed.stoker("fetch", "job-2", code=None)
    model = [boxed.folder / "outputs" / f"job-{number}" / "model" for number in (1, 2)]
    assert model[0].read_text() == model[1].read_text()
    log = boxed.stoker("logs", "job-2").stdout
    assert f"uid {os.getuid()}" in log
    assert facts["metrics"]
    assert containers(boxed) == []


def test_a_killed_agent_and_server_leave_no_container(boxed: Shell) -> None:
    boxed.job("python train.py 40 waits", environment={"image": IMAGE})
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "step 10 ")
    key = next(one.name for one in (boxed.home / "nodes").iterdir())
    assert len(containers(boxed)) == 1
    agents = boxed.agents()
    boxed.kill_server()
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    boxed.wait_for(lambda: not containers(boxed) and not marked(key), "the end of the container")


def test_a_container_that_is_removed_from_outside_costs_an_attempt_and_not_the_run(boxed: Shell) -> None:
    boxed.job("python train.py 40 waits", environment={"image": IMAGE})
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "step 10 ")
    removed = [boxed.environ["NAME"], "rm", "--force", *containers(boxed)]
    subprocess.run(removed, env=boxed.environ, capture_output=True, check=True)
    prints(boxed, "job-1", "step 20 ")
    boxed.stoker("evict", "job-1", "--notice", "2s")
    facts = boxed.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 3), facts
    assert "container was removed" in facts["attempts"][0]["message"]
    assert containers(boxed) == []


def test_visitors_signals_and_exit_codes_are_those_of_the_script_inside(boxed: Shell) -> None:
    boxed.write(
        "train.py",
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), os._exit(41)))
        print("here", os.environ["TOKEN"][::-1], flush=True)
        open("/inside", "w") if os.getuid() == 0 else None
        time.sleep(600)
        """,
    )
    boxed.environ["TOKEN"] = "terces-a-si-siht"
    boxed.job("python train.py", environment={"image": IMAGE}, secrets=["TOKEN"])
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "here this-is-a-secret")
    said = boxed.stoker("exec", "job-1", "--", "sh", "-c", "ls /inside; pwd; echo $STOKER_RUN; exit 7", code=7)
    assert "/inside" in said.stdout.split() and "job-1" in said.stdout.split(), said
    running = " ".join(boxed.processes().values())
    assert "python train.py" in running and "terces" not in running
    assert "train.py" in boxed.stoker("stacks", "job-1").stdout
    boxed.stoker("cancel", "job-1", "--yes", code=None)
    boxed.ended("job-1")
    assert "told" in boxed.stoker("logs", "job-1").stdout
    assert containers(boxed) == []


def test_a_script_that_fails_inside_fails_with_its_own_exit_code(boxed: Shell) -> None:
    boxed.job("python -c 'raise SystemExit(3)'", environment={"image": IMAGE})
    boxed.stoker("run", code=3)
    boxed.job("python -c 'raise SystemExit(-1)'", environment={"image": IMAGE})
    boxed.stoker("run", code=255)
    assert boxed.facts("last")["cause"] == Cause.EXIT_CODE
    boxed.job("exec sh -c 'kill -9 $$'", environment={"image": IMAGE})
    boxed.stoker("run", code=137)


def test_a_signal_to_what_stands_in_for_a_rank_is_no_success(boxed: Shell) -> None:
    boxed.job("python train.py 40 waits", environment={"image": IMAGE})
    boxed.stoker("run", "--detach")
    prints(boxed, "job-1", "step 10 ")
    commands = boxed.processes()
    os.kill(next(pid for pid, words in commands.items() if f"{boxed.environ['NAME']} exec" in words), signal.SIGTERM)
    facts = boxed.ended("job-1")
    assert (facts["state"], facts["cause"]) == ("failed", Cause.SIGNAL), facts
    boxed.wait_for(lambda: not containers(boxed), "the end of its container")


def test_several_ranks_share_one_container_and_keep_their_logs_apart(boxed: Shell) -> None:
    boxed.write("rank.py", "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.getppid())")
    boxed.job("python rank.py", environment={"image": IMAGE}, processes=2)
    boxed.stoker("run")
    logs = [boxed.stoker("logs", "job-1", "--rank", str(rank)).stdout for rank in (0, 1)]
    assert [log.split()[:4] for log in logs] == [["rank", "0", "of", "2"], ["rank", "1", "of", "2"]]


def test_an_image_is_built_from_a_dockerfile_once(boxed: Shell) -> None:
    boxed.write("docker/Dockerfile", f"FROM {IMAGE}\nARG COLOUR\nENV COLOUR=$COLOUR\nCOPY extra.txt /extra.txt\n")
    boxed.write("extra.txt", "copied\n")
    wanted = {"dockerfile": "docker/Dockerfile", "build_args": {"COLOUR": "green"}}
    boxed.job("cat /extra.txt; echo $COLOUR", environment=wanted)
    first, second = (boxed.stoker("run") for _ in range(2))
    assert first.stdout.split()[-2:] == second.stdout.split() == ["copied", "green"]
    told = [json.dumps(json.loads(boxed.stoker("show", f"job-{n}", "--json").stdout)) for n in (1, 2)]
    assert ["image was built" in one for one in told] == [True, False]
    boxed.write("docker/Dockerfile", f"FROM {IMAGE}\nRUN echo no such thing; exit 9\n")
    failed = boxed.stoker("run", code=None)
    assert boxed.facts("last")["cause"] == Cause.INSTALL_FAILED, failed


def test_an_exact_rerun_has_the_image_of_its_run_whatever_its_tag_is_today(boxed: Shell) -> None:
    name = boxed.environ["NAME"]
    for colour in ("green", "blue"):
        boxed.write("other/Dockerfile", f"FROM {IMAGE}\nENV COLOUR={colour}\n")
        build = [name, "build", "--tag", "localhost/other:1", str(boxed.folder / "other")]
        subprocess.run(build, env=boxed.environ, check=True, capture_output=True)
        if colour == "green":
            boxed.job("echo $COLOUR", environment={"image": "localhost/other:1"})
            assert boxed.stoker("run").stdout.split()[-1] == "green"
    assert boxed.facts("job-1")["packages"]["python"]
    assert boxed.stoker("rerun", "job-1", "--name", "today").stdout.split()[-1] == "blue"
    assert boxed.stoker("rerun", "job-1", "--exact-environment", "--name", "exact").stdout.split()[-1] == "green"
    assert boxed.facts("exact")["image"] == boxed.facts("job-1")["image"] != boxed.facts("today")["image"]


def test_a_built_image_is_an_environment_and_goes_with_it(boxed: Shell) -> None:
    boxed.write("Dockerfile", f"FROM {IMAGE}\nENV COLOUR=red\n")
    boxed.job("echo $COLOUR", environment={"dockerfile": "Dockerfile"})
    boxed.stoker("run")
    (one,) = json.loads(boxed.stoker("env", "ls", "--json").stdout)["environments"]
    assert (one["built"]["name"], one["built"]["source"]) == ("job", "Dockerfile")
    facts = boxed.facts("job-1")
    assert (facts["environment"], facts["image"]) == (one["built"]["id"], f"sha256:{one['built']['image']}")
    look = [boxed.environ["NAME"], "image", "inspect", one["built"]["image"]]
    assert not subprocess.run(look, env=boxed.environ, capture_output=True).returncode
    boxed.stoker("env", "rm", one["ref"], "--yes")
    assert subprocess.run(look, env=boxed.environ, capture_output=True).returncode
    assert boxed.stoker("run").stdout.split()[-1] == "red"


def test_a_tutorials_dockerfile_runs_with_its_work_data_and_result(boxed: Shell, tmp_path: Path) -> None:
    """Unchanged but for its base: there CUDA and PyTorch, here the Python of the tests. Its `docker run` mounts folders
    for work, data and results, and has ten gigabytes of shared memory and no limit on the stack."""
    lines = [
        f"FROM {IMAGE}",
        "ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1",
        "COPY requirements.txt /tmp/requirements.txt",
        "RUN python -c 'print(open(\"/tmp/requirements.txt\").read())'",
        "WORKDIR /work",
        'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]',
        'CMD ["bash"]',
    ]
    boxed.write("Dockerfile", "\n".join(lines) + "\n")
    boxed.write("requirements.txt", "torch\n")
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "ratings.csv").write_text("1,2,3\n")
    boxed.write(
        "ncf/ncf.py",
        """
        import os, sys
        from pathlib import Path
        data, result = Path(sys.argv[1]), Path(sys.argv[2])
        try:
            (data / "new").write_text("x")
        except OSError as error:
            print("read-only:", error.errno)
        (result / "model.pth").write_text((data / "ratings.csv").read_text() + os.environ["OMP_NUM_THREADS"])
        """,
    )
    run = "cd ncf && python ncf.py ${data.ml} ${outputs}"
    boxed.job(run, environment={"dockerfile": "Dockerfile"}, data={"ml": {"path": str(tmp_path / "ml")}})
    boxed.stoker("run", patience_s=240)
    assert (boxed.folder / "outputs" / "job-1" / "model.pth").read_text() == "1,2,3\n1"
    assert "read-only: 30" in boxed.stoker("logs", "job-1").stdout
    assert not (tmp_path / "ml" / "new").exists()


def test_what_cannot_run_is_refused_with_its_reason(boxed: Shell, tmp_path: Path) -> None:
    name, empty = boxed.environ["NAME"], boxed.folder / "empty"
    boxed.write("empty/Dockerfile", "FROM scratch\nCOPY file /file\n")
    boxed.write("empty/file", "x")
    build = [name, "build", "--tag", "localhost/empty:1", str(empty)]
    subprocess.run(build, env=boxed.environ, check=True, capture_output=True)
    for image, run, reason in (
        ("localhost/empty:1", "python train.py 1", "no shell `/bin/sh`"),
        (IMAGE, "julia train.jl", "has no program `julia`"),
        ("localhost:1/none:1", "python train.py 1", "could not pull the image `localhost:1/none:1`"),
    ):
        boxed.job(run, environment={"image": image})
        failed = boxed.stoker("run", code=None)
        assert reason in failed.stderr, failed
    assert f"{name} " in boxed.stoker("plan").stdout
    boxed.wait_for(lambda: not containers(boxed), "the end of all containers")


def test_what_the_engine_lacks_is_said_before_a_run(boxed: Shell) -> None:
    boxed.job("python train.py 1", environment={"image": IMAGE})
    (Path(boxed.environ["PATH"]) / boxed.environ["NAME"]).unlink()
    refused = boxed.stoker("run", code=2)
    assert f"{boxed.environ['NAME']}: not installed" in refused.stderr, refused
