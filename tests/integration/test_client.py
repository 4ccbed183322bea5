"""The Python client on a real server with real runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.client.api.client import Client
from stoker.client.local import launch
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import BadInput, Conflict, HomeUnusable, JobInvalid, NotFound, RunFailed, ServerUnavailable
from stoker.model.job.job import Job
from stoker.model.run.run import RunState

TRAIN = """\
import os, sys
from pathlib import Path
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3
for step in range(steps):
    print(f"step {step}", flush=True)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/model.txt").write_text("weights " * steps)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientSettings]:
    settings = from_environment({**os.environ, "STOKER_HOME": str(tmp_path_factory.mktemp("home"))})
    yield settings
    launch.stop(settings)


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[ClientSettings]:
    """For tests that stop or break their server."""
    settings = from_environment({**os.environ, "STOKER_HOME": str(tmp_path / "own home")})
    yield settings
    launch.stop(settings)


@pytest.fixture
def client(home: ClientSettings) -> Client:
    return Client.connect(home)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def script(project: Path) -> Callable[[str], Path]:
    def script(text: str) -> Path:
        (project / "train.py").write_text(text)
        return project

    return script


def job(run: str = "python train.py", name: str = "ants", **more: Any) -> Job:
    return Job(name=name, run=run, **more)


def text(pieces: Iterator[bytes]) -> bytes:
    return b"".join(pieces)


def test_a_run_is_submitted_followed_and_downloaded(client: Client, project: Path) -> None:
    run = client.submit(job("python train.py 4"), project)
    assert text(run.logs(follow=True)) == b"step 0\nstep 1\nstep 2\nstep 3\n"
    run.wait(check=True)
    assert run.state is RunState.SUCCEEDED
    assert run.outputs == project / "outputs" / run.name
    assert (run.outputs / "model.txt").read_text() == "weights " * 4
    assert text(run.logs()) == b"step 0\nstep 1\nstep 2\nstep 3\n"
    assert text(run.logs(offset=21)) == b"step 3\n"
    assert [(log.attempt, log.rank, log.size_bytes, log.complete) for log in run.log_list()] == [(1, 0, 28, True)]
    assert "submitted" in [event.kind for event in run.events()]
    assert "succeeded" in run._repr_html_()


def test_fetching_twice_brings_the_same_files_to_the_same_place(client: Client, project: Path, tmp_path: Path) -> None:
    run = client.submit(job(), project).wait(check=True)
    first = run.fetch(tmp_path / "here")
    assert first == tmp_path / "here" / run.name
    (first / "model.txt").write_text("damaged")
    assert run.fetch(str(tmp_path / "here")) == first
    assert (first / "model.txt").read_text() == "weights " * 3


def test_a_failed_run_raises_and_lands_apart(client: Client, script: Callable[[str], Path], tmp_path: Path) -> None:
    folder = script(
        "import os\nos.makedirs('outputs', exist_ok=True)\nopen('outputs/a', 'w').write('half')\nraise SystemExit(3)"
    )
    run = client.submit(job(), folder)
    with pytest.raises(RunFailed, match=run.name):
        run.wait(check=True)
    assert (run.state, run.facts.exit_code) == (RunState.FAILED, 3)
    assert run.outputs.name == f"{run.name}-failed"
    assert run.fetch(tmp_path).name == f"{run.name}-failed"


def test_waiting_can_be_limited(client: Client, script: Callable[[str], Path]) -> None:
    run = client.submit(job(), script("import time; time.sleep(60)"))
    assert not run.wait(0.3).state.ended
    with pytest.raises(TimeoutError):
        run.wait(0.01, check=True)
    run.cancel()
    assert run.wait().state is RunState.CANCELLED
    with pytest.raises(Conflict):
        run.cancel()


def test_a_plan_changes_nothing_and_says_what_a_submission_would_do(
    client: Client, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"12345")
    (project / "outputs").mkdir()
    (project / "outputs" / "old.bin").write_bytes(b"x" * 1000)
    (project / "fresh.py").write_text(f"# {os.urandom(8).hex()}")
    described = job("python train.py --in ${data.images} --out ${outputs} $HOME", data={"images": "../images"})
    before = client.runs()
    plan = client.plan(described, project)
    assert (plan.files, plan.new_files, plan.new_bytes) == (2, plan.new_files, plan.new_bytes)
    assert plan.new_files >= 1
    assert plan.left_out == ("outputs",)
    assert plan.meanings["data.images"] == str(tmp_path / "images")
    assert plan.data[0].mark.startswith("1 file, 5 bytes")
    assert (plan.queued_ahead, plan.land_in) == (0, str(project / "outputs"))
    assert plan.offer and plan.offer.usd_per_hour == 0
    assert plan.plain()["snapshot"] == plan.snapshot.id
    again = client.plan(described, project)
    assert (again.new_files, again.snapshot.id) == (plan.new_files, plan.snapshot.id)
    assert client.runs() == before
    assert client.submit(described, project).facts.snapshot == plan.snapshot.id


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"data": {"x": "nowhere"}}, "data.x"),
        ({"source": "nowhere"}, "source"),
        ({"source": "train.py"}, "source"),
        ({"environment": "requirements.txt"}, "environment.requirements"),
        ({"on": "moon"}, "on"),
        ({"nodes": 1000}, "nodes"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_what_cannot_be_is_refused_before_anything_happens(
    client: Client, project: Path, verb: str, more: dict[str, Any], field: str
) -> None:
    before = len(client.runs())
    with pytest.raises(JobInvalid) as caught:
        getattr(client, verb)(job(**more), project)
    assert [problem.field for problem in caught.value.problems] == [field]
    assert len(client.runs()) == before


def test_data_that_the_command_names_is_not_uploaded_and_appears_where_it_was(
    client: Client, script: Callable[[str], Path]
) -> None:
    folder = script("import os, sys; print(sorted(os.listdir('.')), os.listdir(sys.argv[1]))")
    for name in ("told", "silent", "outputs", "checkpoints"):
        (folder / name).mkdir()
        (folder / name / "x").touch()
    described = job("python train.py ${data.a}", data={"a": "told", "b": "silent"})
    assert client.plan(described, folder).left_out == ("outputs", "checkpoints", "told")
    run = client.submit(described, folder).wait(check=True)
    assert b"'silent', 'told', 'train.py'] ['x']" in text(run.logs())


def test_a_requirements_file_that_is_ignored_would_not_arrive(client: Client, project: Path) -> None:
    (project / "requirements.txt").touch()
    (project / ".gitignore").write_text("*.txt\n")
    with pytest.raises(JobInvalid, match="ignore file"):
        client.plan(job(environment="requirements.txt"), project)


def test_secrets_come_from_the_environment_and_go_nowhere_else(
    home: ClientSettings, script: Callable[[str], Path]
) -> None:
    folder = script("import os; print(len(os.environ['API_TOKEN']))")
    described = job(secrets=["API_TOKEN"])
    with pytest.raises(BadInput, match="API_TOKEN"):
        Client.connect(home).submit(described, folder)
    secret = f"s3cret-{os.urandom(8).hex()}"
    client = Client.connect(replace(home, environ={**home.environ, "API_TOKEN": secret}))
    run = client.submit(described, folder).wait(check=True)
    assert text(run.logs()).strip() == str(len(secret)).encode()
    with pytest.raises(BadInput, match="API_TOKEN"):
        Client.connect(home).rerun(run.name)
    assert client.rerun(run.name).wait().state is RunState.SUCCEEDED
    held = [path for path in home.home.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert held == []


def test_a_rerun_takes_the_old_code_whatever_the_folder_says_now(client: Client, script: Callable[[str], Path]) -> None:
    folder = script("print('old')")
    first = client.submit(job(name="again"), folder).wait(check=True)
    script("print('new')")
    second = client.rerun("again").wait(check=True)
    assert text(second.logs()) == b"old\n"
    assert (second.facts.rerun_of, second.facts.snapshot) == (first.name, first.facts.snapshot)
    assert client.compare(first.name, second.name).same


def test_two_runs_are_compared(client: Client, project: Path) -> None:
    first = client.submit(job("python train.py --steps 1", name="diff"), project)
    (project / "train.py").write_text(TRAIN + "# more\n")
    second = client.submit(job("python train.py --steps 2", name="diff", retries=1), project)
    found = client.compare(first.name, second.name)
    assert [change.name for change in found.code] == ["train.py"]
    assert [(change.name, change.first, change.second) for change in found.arguments] == [("--steps", "1", "2")]
    assert [change.name for change in found.job] == ["retries"]
    assert found.packages == found.data == found.python == ()


def test_runs_are_found_by_name_experiment_or_as_the_last(client: Client, project: Path) -> None:
    first = client.submit(job(name="finder"), project)
    second = client.submit(job(name="finder"), project, name="special")
    assert client.run("finder").name == client.run("last").name == second.name == "special"
    assert client.run(first.name).facts.id == first.facts.id
    assert [run.name for run in client.runs(experiment="finder")] == ["special", first.name]
    assert [run.name for run in client.runs(limit=1)] == ["special"]
    with pytest.raises(NotFound) as caught:
        client.run("speciall")
    assert "`special`" in caught.value.hint


def test_a_removed_run_is_gone(client: Client, project: Path) -> None:
    run = client.submit(job(name="gone"), project)
    with pytest.raises(Conflict):
        client.remove(run.name)
    run.wait()
    client.remove(run.name)
    with pytest.raises(NotFound):
        run.refresh()


def test_a_log_that_is_not_there_is_not_found(client: Client, project: Path) -> None:
    run = client.submit(job(), project).wait()
    with pytest.raises(NotFound, match="attempt 7"):
        text(run.logs(attempt=7))
    with pytest.raises(NotFound, match="rank 5"):
        text(run.logs(rank=5))
    with pytest.raises(NotFound, match="attempt 7"):
        text(run.logs(attempt=7, follow=True))


def test_following_continues_through_later_attempts(client: Client, script: Callable[[str], Path]) -> None:
    folder = script("import os; n = os.environ['STOKER_ATTEMPT']; print('attempt', n); raise SystemExit(int(n) < 3)")
    run = client.submit(job(retries=2), folder)
    assert text(run.logs(follow=True)) == b"attempt 1\nattempt 2\nattempt 3\n"
    assert text(run.logs()) == b"attempt 3\n"
    assert text(run.logs(attempt=2, follow=True)) == b"attempt 2\n"
    assert run.wait().state is RunState.SUCCEEDED


def test_what_a_script_reports_can_be_read_as_a_table(client: Client, script: Callable[[str], Path]) -> None:
    folder = script("import stoker\nfor step in range(5): stoker.log(step=step, loss=1 / (step + 1))")
    run = client.submit(job(), folder).wait(check=True)
    metrics = run.metrics()
    assert metrics.series("loss") == [(step, 1 / (step + 1)) for step in range(5)]
    assert metrics.last["loss"] == pytest.approx(0.2)
    assert run.facts.metrics["loss"].least == pytest.approx(0.2)
    assert len(metrics.frame()) == 5


def test_a_large_tree_is_sent_once(client: Client, project: Path) -> None:
    for number in range(30):
        (project / f"data{number}.bin").write_bytes(os.urandom(200_000))
    sent: list[tuple[int, int]] = []
    client.submit(job(), project, progress=lambda done, total: sent.append((done, total)))
    assert sent[-1][0] == sent[-1][1] >= 6_000_000
    assert [done for done, _ in sent] == sorted(done for done, _ in sent)
    sent.clear()
    client.submit(job(), project, progress=lambda done, total: sent.append((done, total)))
    assert sent == []


FIRST = """\
import sys
from stoker.client.local import launch
from stoker.client.settings import from_environment
connection = launch.connect(from_environment())
print(connection.get("/v1/health")["pid"])
"""


def pids_seen_by(count: int, settings: ClientSettings) -> set[int]:
    """The servers that so many commands find when all start at once."""
    command = [sys.executable, "-c", FIRST]
    processes = [
        subprocess.Popen(command, env=settings.for_server(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(count)
    ]
    answers = [process.communicate(timeout=90) for process in processes]
    assert {err for _, err in answers} == {b""}
    return {int(out) for out, _ in answers}


def test_ten_first_commands_start_one_server(own_home: ClientSettings) -> None:
    assert len(pids_seen_by(10, own_home)) == 1


def test_several_commands_of_a_newer_version_replace_the_server_once(own_home: ClientSettings) -> None:
    Client.connect(own_home)
    before = make_older(own_home)
    after = pids_seen_by(5, own_home)
    assert len(after) == 1
    assert before not in after


def make_older(settings: ClientSettings) -> int:
    """As if the running server had been started by an older Stoker. Returns its pid."""
    status = launch.status(settings)
    assert status
    address = settings.home.address
    address.write_text(address.read_text().replace(f'"{status["version"]}"', '"0.0.1"'))
    return int(status["pid"])


def test_stopping_is_complete_and_may_be_repeated(own_home: ClientSettings) -> None:
    Client.connect(own_home)
    status = launch.status(own_home)
    assert status and status["home"] == str(own_home.home.root)
    assert launch.stop(own_home)
    assert launch.status(own_home) is None
    assert not launch.stop(own_home)
    with pytest.raises(ServerUnavailable):
        Client.connect(own_home, start=False).runs()


def test_a_dead_servers_address_is_not_trusted(own_home: ClientSettings, project: Path) -> None:
    client = Client.connect(own_home)
    status = launch.status(own_home)
    assert status
    os.kill(status["pid"], signal.SIGKILL)
    assert own_home.home.address.exists()
    assert client.runs() == []
    assert Client.connect(own_home).submit(job(), project).wait(check=True).state is RunState.SUCCEEDED
    after = launch.status(own_home)
    assert after and after["pid"] != status["pid"]


def test_an_older_server_is_replaced_and_runs_continue(own_home: ClientSettings, script: Callable[[str], Path]) -> None:
    client = Client.connect(own_home)
    run = client.submit(job(), script("import time\nfor i in range(20): print(i, flush=True); time.sleep(0.1)"))
    next(run.logs(follow=True))
    before = make_older(own_home)
    run = Client.connect(own_home).run(run.name)
    after = launch.status(own_home)
    assert after and after["pid"] != before
    assert run.wait(check=True).facts.attempts[-1].number == 1


def test_a_server_that_cannot_start_says_why(own_home: ClientSettings) -> None:
    own_home.home.root.mkdir()
    with pytest.raises(ServerUnavailable, match="STOKER_PORT"):
        Client.connect(replace(own_home, environ={**own_home.environ, "STOKER_PORT": "x"}))


@pytest.mark.skipif(os.name == "nt", reason="folders there are closed in other ways")
def test_a_home_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeUnusable) as caught:
        Client.connect(from_environment({**os.environ, "STOKER_HOME": str(tmp_path / "file" / "home")}))
    assert "STOKER_HOME" in caught.value.hint


def test_a_tail_survives_restarts_without_losing_or_repeating_a_byte(
    own_home: ClientSettings, script: Callable[[str], Path]
) -> None:
    lines = 3000
    folder = script(f"import time\nfor i in range({lines}):\n    print(f'line {{i}}', flush=True); time.sleep(0.002)")
    client = Client.connect(own_home)
    run = client.submit(job(), folder)
    read = bytearray()

    def follow() -> None:
        for piece in run.logs(follow=True):
            read.extend(piece)

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        killed = 0
        for how in (signal.SIGTERM, signal.SIGKILL):
            while not (status := launch.status(own_home)) or status["pid"] == killed:
                time.sleep(0.01)
            size = len(read)
            while len(read) < size + 2000:
                time.sleep(0.01)
            killed = status["pid"]
            os.kill(killed, how)
        reader.join(60)
        assert bytes(read) == b"".join(b"line %d\n" % number for number in range(lines))
        assert run.wait(check=True).state is RunState.SUCCEEDED
    finally:
        if not run.refresh().state.ended:  # or the follower would start servers for ever
            run.cancel()
        reader.join()
