"""What an environment is built from, and with which commands: nothing is built here."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.environment.building import steps
from stoker.agent.environment.recipe import EnvironmentKind, Recipe, read_recipe, read_taken, spelled_out
from stoker.model.environment import tool_settings
from stoker.model.job.sections import LOCK


def recipe(folder: Path, name: str, files: dict[str, str]) -> Recipe:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return read_recipe(folder, name)


@pytest.mark.parametrize(
    ("name", "beside", "kind"),
    [
        ("requirements.txt", "", EnvironmentKind.REQUIREMENTS),
        ("requirements-gpu.in", "", EnvironmentKind.REQUIREMENTS),
        ("pyproject.toml", "", EnvironmentKind.PROJECT),
        ("pyproject.toml", "uv.lock", EnvironmentKind.UV_LOCK),
        ("uv.lock", "pyproject.toml", EnvironmentKind.UV_LOCK),
        ("pylock.toml", "", EnvironmentKind.PYLOCK),
        ("pylock.gpu.toml", "", EnvironmentKind.PYLOCK),
    ],
)
def test_the_name_says_what_it_is(tmp_path: Path, name: str, beside: str, kind: EnvironmentKind) -> None:
    assert recipe(tmp_path, name, {name: "", **({beside: ""} if beside else {})}).kind is kind


def test_included_files_count(tmp_path: Path) -> None:
    files = {
        "a/requirements.txt": "-r ../base.txt\n-c limits.txt # why\nsix",
        "base.txt": "-ra/more.txt",
        "a/more.txt": "",
    }
    found = recipe(tmp_path, "a/requirements.txt", {**files, "a/limits.txt": "six<2"})
    assert set(found.files) == {"a/requirements.txt", "base.txt", "a/limits.txt", "a/more.txt"}
    before = found.fingerprint("3.11")
    (tmp_path / "a" / "limits.txt").write_text("six<3")
    assert read_recipe(tmp_path, "a/requirements.txt").fingerprint("3.11") != before


def test_the_same_content_is_the_same_environment_and_another_python_another(tmp_path: Path) -> None:
    one = recipe(tmp_path / "one", "requirements.txt", {"requirements.txt": "six"})
    two = recipe(tmp_path / "two", "requirements.txt", {"requirements.txt": "six"})
    assert one.fingerprint("3.11") == two.fingerprint("3.11")
    assert one.fingerprint("3.11") != one.fingerprint("3.12")


def test_a_file_that_is_included_and_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(AttemptBroken, match=r"`nowhere\.txt`.*`requirements\.txt`"):
        recipe(tmp_path, "requirements.txt", {"requirements.txt": "-r nowhere.txt"})


def test_a_conda_file_is_installed_by_a_tool_of_conda(tmp_path: Path) -> None:
    found = recipe(tmp_path, "environment.yml", {"environment.yml": "name: x"})
    words = steps(found, "python", tmp_path / "venv", "/opt/micromamba")
    assert words == [
        ["/opt/micromamba", "env", "create", "--quiet", "--prefix", str(tmp_path / "venv"), "--file", str(found.file)]
    ]


def test_a_lock_counts_where_it_is_for_this_python_and_machine(tmp_path: Path) -> None:
    files = {"requirements.txt": "six\n", LOCK: "# python 3.11 on linux-x86_64\nsix==1.16.0\n"}
    recipe(tmp_path, "requirements.txt", files)
    one, other = (read_recipe(tmp_path, "requirements.txt", (f"python {it} on linux-x86_64",)) for it in (3.11, 3.12))
    assert (one.listed, other.listed) == (tmp_path / LOCK, None)
    assert str(tmp_path / LOCK) in steps(one, "python", tmp_path / "venv", "uv")[-1]
    (tmp_path / "requirements.txt").write_text("six # and a comment")
    assert read_recipe(tmp_path, "requirements.txt", ("python 3.11 on linux-x86_64",)).files == one.files


def test_a_lock_needs_its_project(tmp_path: Path) -> None:
    with pytest.raises(AttemptBroken, match="pyproject"):
        recipe(tmp_path, "uv.lock", {"uv.lock": ""})


@pytest.mark.parametrize(
    ("line", "tied", "private"),
    [
        ("six", False, False),
        ("six>=1.0; python_version < '4' # ./not/a/path", False, False),
        ("pkg @ https://example.org/pkg.whl", False, False),
        ("git+https://example.org/a/b.git", False, False),
        ("--extra-index-url https://example.org/a", False, False),
        ("./pkg", True, False),
        ("libs/pkg[extra]", True, False),
        ("pkg @ file:///opt/pkg.whl", True, False),
        ("--find-links wheels/cpu", True, False),
        ("-e .", True, True),
        ("--editable ./pkg", True, True),
    ],
)
def test_code_of_the_run_itself_ties_the_environment_to_it(
    tmp_path: Path, line: str, tied: bool, private: bool
) -> None:
    found = recipe(tmp_path, "requirements.txt", {"requirements.txt": line + "\n"})
    assert (found.tied, found.private) == (tied, private)


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("[project]\ndependencies = ['six']", False),
        ("[tool.uv.sources]\nlib = { path = '../lib' }", True),
        ("[tool.uv.sources]\nlib = { workspace = true }", True),
        ("[tool.uv.workspace]\nmembers = ['a']", True),
    ],
)
def test_a_project_with_local_sources_is_private(tmp_path: Path, text: str, private: bool) -> None:
    assert recipe(tmp_path, "pyproject.toml", {"pyproject.toml": text}).private is private


VENV = Path("/environments/x")


def test_uv_installs_requirements(tmp_path: Path) -> None:
    found = recipe(tmp_path, "requirements.txt", {"requirements.txt": ""})
    make, install = steps(found, "/usr/bin/python3", VENV, "/bin/uv")
    assert make[:5] == ["/bin/uv", "venv", "--quiet", "--no-project", "--relocatable"]
    assert make[5:] == ["--python", "/usr/bin/python3", str(VENV)]
    assert install[:6] == ["/bin/uv", "pip", "install", "--quiet", "--python", "/environments/x/bin/python"]
    assert install[-2:] == ["-r", str(tmp_path / "requirements.txt")]


def test_uv_keeps_to_a_lock(tmp_path: Path) -> None:
    found = recipe(tmp_path, "uv.lock", {"uv.lock": "", "pyproject.toml": ""})
    make, sync = steps(found, "/usr/bin/python3", VENV, "/bin/uv")
    assert make[-1] == str(VENV)
    assert sync[:4] == ["/bin/uv", "sync", "--quiet", "--frozen"]
    assert "--no-install-project" in sync


def test_without_uv_pip_does_it(tmp_path: Path) -> None:
    found = recipe(tmp_path, "pyproject.toml", {"pyproject.toml": "[project]\ndependencies = ['six', 'numpy<3']"})
    make, install = steps(found, "/usr/bin/python3", VENV, None)
    assert make == ["/usr/bin/python3", "-m", "venv", str(VENV)]
    assert install == ["/environments/x/bin/python", "-m", "pip", "install", "six", "numpy<3"]


def test_a_lock_without_uv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttemptBroken, match="uv"):
        steps(recipe(tmp_path, "pylock.toml", {"pylock.toml": ""}), "/usr/bin/python3", VENV, None)


def test_what_is_set_for_pip_counts_for_uv() -> None:
    settings = tool_settings({"PIP_FIND_LINKS": "/a /b", "PIP_INDEX_URL": "https://example.org", "VIRTUAL_ENV": "/v"})
    assert settings["UV_FIND_LINKS"] == "/a,/b"
    assert settings["UV_INDEX_URL"] == "https://example.org"
    assert "VIRTUAL_ENV" not in settings


def test_what_is_set_for_uv_wins() -> None:
    settings = tool_settings({"PIP_FIND_LINKS": "/a", "UV_FIND_LINKS": "/u", "PIP_INDEX_URL": "p", "UV_INDEX": "u"})
    assert settings["UV_FIND_LINKS"] == "/u"
    assert "UV_INDEX_URL" not in settings


def test_what_was_taken_along_is_known_by_its_list_and_its_wheels(tmp_path: Path) -> None:
    def taken(name: str, listed: str, wheel: bytes) -> Recipe:
        folder = tmp_path / name / ".stoker"
        (folder / "wheels").mkdir(parents=True)
        (folder / "packages.txt").write_text(listed)
        (folder / "wheels" / "mine-1-py3-none-any.whl").write_bytes(wheel)
        return read_taken(tmp_path / name)

    listed = "mine @ wheels/mine-1-py3-none-any.whl\nsix==1.16.0\n"
    first = taken("one", listed, b"1")
    assert first.fingerprint() == taken("two", listed, b"1").fingerprint(), "runs of other code share it"
    assert first.fingerprint() != taken("three", listed, b"2").fingerprint()
    assert first.fingerprint() != taken("four", listed + "idna==3.7\n", b"1").fingerprint()
    wheel = (tmp_path / "one" / ".stoker" / "wheels" / "mine-1-py3-none-any.whl").as_uri()
    assert spelled_out(first) == f"mine @ {wheel}\nsix==1.16.0\n"
    made, install = steps(first, "/usr/bin/python3", tmp_path / "venv", "/bin/uv", tmp_path / "list")
    assert install[-4:] == ["-r", str(tmp_path / "list"), "--override", str(tmp_path / "list")]
    assert made[:2] == ["/bin/uv", "venv"]
