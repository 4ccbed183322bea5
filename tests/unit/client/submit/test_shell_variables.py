"""Which variables of a shell come along with a run, in what order of precedence, and that no secret does."""

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.client.settings import ClientSettings, from_environment
from stoker.client.submit.preparation import prepare
from stoker.client.submit.surroundings import BEGINNINGS, HERE, NAMES, read_env_file, secret_kind, take
from stoker.errors import BadInput, JobInvalid
from stoker.model.job.job import Job

HF_TOKEN = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm24681357"
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "environment.md"


def settings(tmp_path: Path, **environ: str) -> ClientSettings:
    return from_environment({"STOKER_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "USER": "ann", **environ})


def project(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print(1)\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def job(**more: object) -> Job:
    return Job.read({"name": "job", "run": "python train.py", **more})


def test_numeric_and_framework_variables_come_along_and_others_stay() -> None:
    taken = take(
        {"OMP_NUM_THREADS": "3", "XLA_FLAGS": "--a=1", "KERAS_BACKEND": "jax", "EDITOR": "vi", "TF_LOG": "TRACE"},
        (),
        (),
        Path("/src"),
    )
    assert taken.everywhere == {"OMP_NUM_THREADS": "3", "XLA_FLAGS": "--a=1", "KERAS_BACKEND": "jax"}
    assert not taken.here and not taken.notes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("HF_HOME", "/data/hf"),
        ("TORCH_HOME", "models"),
        ("JAX_COMPILATION_CACHE_DIR", "cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_HUB_ENABLE_HF_TRANSFER", "1"),
        ("TORCH_LOGS_OUT", "/var/tmp/log"),
    ],
)
def test_what_names_devices_or_folders_of_this_computer_stays_on_it(name: str, value: str) -> None:
    taken = take({name: value}, (), (), Path("/src"))
    assert taken.here == {name: value} and not taken.everywhere


@pytest.mark.parametrize("name", ["JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "HF_TOKEN", "TF_TOKEN_app", "MY_RANK"])
def test_tokens_and_places_among_processes_never_come_along(name: str) -> None:
    taken = take({name: "abc"}, (), (), Path("/src"))
    assert not taken.everywhere and not taken.here


def test_a_listed_variable_that_holds_a_secret_stays_and_the_plan_says_so() -> None:
    taken = take({"HF_ENDPOINT": "https://ann:Tr0ub4dor-3x!@mirror.example.org"}, (), (), Path("/src"))
    assert not taken.everywhere and not taken.here
    assert "`HF_ENDPOINT`" in taken.notes[0] and "secrets:" in taken.notes[0] and "Tr0ub" not in taken.notes[0]


def test_a_token_of_the_shell_is_reported_unless_the_job_lists_it() -> None:
    environ = {"HF_TOKEN": HF_TOKEN, "WANDB_API_KEY": "x"}
    told = take(environ, (), ("HF_TOKEN",), Path("/src")).notes
    assert len(told) == 1 and "WANDB_API_KEY" in told[0] and "secrets=[WANDB_API_KEY]" in told[0]


def test_the_python_path_is_that_of_the_copy_of_the_source() -> None:
    taken = take({"PYTHONPATH": "/src/lib:/opt/more:tools"}, (), (), Path("/src"))
    assert taken.here == {"PYTHONPATH": "lib:/opt/more:tools"}


def test_the_job_wins_over_the_file_and_the_file_over_the_shell(tmp_path: Path) -> None:
    folder = project(tmp_path, vars="OMP_NUM_THREADS=2\nKMP_BLOCKTIME=2\n")
    shell = settings(tmp_path, OMP_NUM_THREADS="1", KMP_BLOCKTIME="1", MKL_CBWR="AVX2")
    made = prepare(job(env={"KMP_BLOCKTIME": "3"}, env_file="vars"), folder, shell)
    assert made.job.env == {"OMP_NUM_THREADS": "2", "KMP_BLOCKTIME": "3", "MKL_CBWR": "AVX2"}
    assert made.from_file == ("OMP_NUM_THREADS", "KMP_BLOCKTIME")
    assert made.taken.everywhere == {"MKL_CBWR": "AVX2"}


def test_a_submission_to_a_server_elsewhere_has_nothing_that_is_only_for_this_computer(tmp_path: Path) -> None:
    folder = project(tmp_path)
    near = settings(tmp_path, CUDA_VISIBLE_DEVICES="1", OMP_NUM_THREADS="1")
    far = settings(tmp_path, CUDA_VISIBLE_DEVICES="1", OMP_NUM_THREADS="1", STOKER_SERVER="https://team.example.org")
    assert prepare(job(), folder, near).submission("k", "", near).here == {"CUDA_VISIBLE_DEVICES": "1"}
    sent = prepare(job(), folder, far).submission("k", "", far)
    assert sent.here == {} and sent.job.env == {"OMP_NUM_THREADS": "1"}


def test_a_server_is_started_without_what_each_run_brings_itself(tmp_path: Path) -> None:
    variables = settings(tmp_path, CUDA_VISIBLE_DEVICES="1", OMP_NUM_THREADS="1", CUDA_HOME="/c", LANG="C").for_server()
    assert not {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"} & variables.keys()
    assert variables["CUDA_HOME"] == "/c" and variables["LANG"] == "C"


def test_a_server_that_a_person_starts_keeps_the_devices_of_that_shell(tmp_path: Path) -> None:
    shell = replace(settings(tmp_path, CUDA_VISIBLE_DEVICES="1", OMP_NUM_THREADS="1", HF_HOME="/hf"), by_hand=True)
    variables = shell.for_server()
    assert variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert not {"OMP_NUM_THREADS", "HF_HOME"} & variables.keys()


def test_an_env_file_is_read_as_its_writers_mean_it(tmp_path: Path) -> None:
    text = "# comment\n\nA=1\nexport B = 'x # y'  # z\nC=\"a\\nb\" \nD=a b # c\nE=\nF\nG=$HOME/x#y\n"
    (tmp_path / "vars").write_text(text)
    found = read_env_file(tmp_path / "vars", (), {"F": "from shell"}).variables
    assert found == {"A": "1", "B": "x # y", "C": "a\nb", "D": "a b", "E": "", "F": "from shell", "G": "$HOME/x#y"}


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN={HF_TOKEN}",
        f"ANY={HF_TOKEN}",
        "DB_PASSWORD=hunter2",
        "WANDB_API_KEY=abc",
        "AWS_SECRET_ACCESS_KEY=q7",
        "MY_TOKEN=Zx81kQp02LmvT7sYw4Rb",
        "MY_TOKEN=abc123def456",
        "SESSION_TOKEN=letmein",
        "DB_PASS=Sup3rS3cr3t!x",
        "WANDB_KEY=0f3a9c81d24be5a77c01f5e2b9a64d38f0c1e7a2",
        "AZURE_STORAGE_KEY=aBcD3fGh1jKlMn0p/QrSt0123A==",
        "URL=postgres://ann:Tr0ub4dor-3x!@db.example.org/x",
    ],
)
def test_a_secret_in_an_env_file_is_refused_with_its_line_and_never_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "vars").write_text(f"OK=1\n{line}\n")
    with pytest.raises(BadInput) as caught:
        read_env_file(tmp_path / "vars", (), {})
    assert "vars:2" in caught.value.message and "secrets:" in caught.value.hint
    assert line.partition("=")[2] not in f"{caught.value.message} {caught.value.hint}".replace("abc`", "")


@pytest.mark.parametrize(
    "line",
    [
        "PAD_TOKEN=<pad>",
        "MAX_TOKENS=512",
        "TOKENIZER=bpe",
        "KEY=loss",
        "SEED=0",
        "SORT_KEY=resnet50_v1_224",
        "EOS_TOKEN=<|im_end|>",
        "FORWARD_PASS=2",
        "START_TOKEN=100000000000",
    ],
)
def test_ordinary_settings_are_no_secrets(line: str) -> None:
    name, _, value = line.partition("=")
    assert secret_kind(name, value) == ""


def test_a_secret_that_the_job_lists_is_read_from_the_env_file_and_stays_out_of_the_code(tmp_path: Path) -> None:
    folder = project(tmp_path, vars=f"HF_TOKEN={HF_TOKEN}\nA=1\n")
    made = prepare(job(env_file="vars", secrets=["HF_TOKEN"]), folder, settings(tmp_path))
    assert made.secrets == {"HF_TOKEN": HF_TOKEN} and made.job.env == {"A": "1"}
    assert [entry.path for entry in made.tree.snapshot.entries] == ["train.py"]


@pytest.mark.parametrize("named", ["../project/vars", "~/project/vars", "./sub/../vars"])
def test_an_env_file_with_secrets_stays_out_of_the_code_however_it_is_named(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = project(tmp_path, vars="MINE=hunter2\n")
    made = prepare(job(env_file=named, secrets=["MINE"]), folder, settings(tmp_path))
    assert made.secrets == {"MINE": "hunter2"}
    assert [entry.path for entry in made.tree.snapshot.entries] == ["train.py"]


@pytest.mark.parametrize(("text", "line"), [("A=1\nB C\n", 2), ("'A'=1\n", 1), ('A="open\n', 1), ("STOKER_RUN=x\n", 1)])
def test_a_wrong_line_of_an_env_file_is_named(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "vars").write_text(text)
    with pytest.raises(BadInput, match=f"vars:{line}"):
        read_env_file(tmp_path / "vars", (), {})


def test_an_env_file_that_is_not_there_is_a_problem_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="env_file"):
        prepare(job(env_file="gone"), project(tmp_path), settings(tmp_path))


def test_every_variable_that_comes_along_is_in_the_docs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in (*NAMES, *HERE) if f"`{name}`" not in page]
    missing += [name for name in BEGINNINGS if f"`{name}*`" not in page]
    assert not missing
