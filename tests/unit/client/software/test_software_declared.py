"""What files of requirements declare, in the forms that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.software.declared import declared
from stoker.client.software.packages import cloud
from stoker.errors import JobInvalid

HASH = "sha256:" + 64 * "a"
OLD_LOCK = f"""
[[package]]
name = "Requests"
version = "2.31.0"
optional = false
files = [{{file = "r.whl", hash = "{HASH}"}}]
[package.dependencies]
idna = ">=2"
PySocks = {{version = "*", optional = true, markers = "extra == 'socks'"}}
colorama = {{version = "*", markers = "sys_platform == 'win32'"}}

[[package]]
name = "idna"
version = "3.7"
optional = false
files = [{{file = "i.whl", hash = "{HASH}"}}]
[package.dependencies]
requests = "*"

[[package]]
name = "pysocks"
version = "1.7"
optional = true
files = []

[[package]]
name = "colorama"
version = "0.4"
optional = false
files = []

[[package]]
name = "pytest"
version = "8.0"
optional = false
files = []

[metadata]
lock-version = "2.0"
"""
NEW_LOCK = f"""
[[package]]
name = "six"
version = "1.16.0"
optional = false
groups = ["main", "dev"]
markers = {{main = "python_version >= \\"3.8\\"", dev = "sys_platform == \\"linux\\""}}
files = [{{file = "s.whl", hash = "{HASH}"}}]

[[package]]
name = "pytest"
version = "8.0"
optional = false
groups = ["dev"]
files = []

[metadata]
lock-version = "2.1"
"""
PROJECT = '[tool.poetry.dependencies]\npython = "^3.11"\nrequests = "^2.31"\n'


def read(folder: Path, name: str, **files: str) -> str:
    for path, text in files.items():
        (folder / path.replace("_", ".")).write_text(text)
    return declared(folder / name, name, cloud("3.11.4")).text


@pytest.mark.parametrize("name", ["poetry.lock", "pyproject.toml"])
def test_an_older_lock_of_poetry_gives_what_the_project_needs_on_this_platform(tmp_path: Path, name: str) -> None:
    text = read(tmp_path, name, poetry_lock=OLD_LOCK, pyproject_toml=PROJECT)
    assert text == f"requests==2.31.0 \\\n    --hash={HASH}\nidna==3.7 \\\n    --hash={HASH}\n"


def test_a_newer_lock_of_poetry_says_by_itself_who_needs_what(tmp_path: Path) -> None:
    text = read(tmp_path, "poetry.lock", poetry_lock=NEW_LOCK, pyproject_toml=PROJECT)
    assert text == f'six==1.16.0 ; python_version >= "3.8" \\\n    --hash={HASH}\n'


def test_a_folder_of_this_computer_in_a_lock_is_refused(tmp_path: Path) -> None:
    local = NEW_LOCK.replace("[metadata]", '[package.source]\ntype = "directory"\nurl = "../mine"\n[metadata]')
    local = local.replace('groups = ["dev"]', 'groups = ["main"]')
    with pytest.raises(JobInvalid) as refused:
        read(tmp_path, "poetry.lock", poetry_lock=local)
    assert "../mine" in refused.value.problems[0].expected


@pytest.mark.parametrize(
    ("text", "pip", "python", "conda"),
    [
        ("dependencies: [python=3.12.1, pip, {pip: [six==1.16.0, idna]}]", "six==1.16.0\nidna\n", "3.12", ()),
        ("dependencies: [python 3.10.*, {pip: [six]}]", "six\n", "", ()),
        ("dependencies: [pip=24, 'pytorch=2.5', 'numpy>=1', {pip: [six]}]", "six\n", "", ("pytorch=2.5", "numpy>=1")),
        ("dependencies: [python-dateutil]", "", "", ("python-dateutil",)),
    ],
)
def test_a_conda_file_gives_its_pip_part_and_says_what_only_conda_has(
    tmp_path: Path, text: str, pip: str, python: str, conda: tuple[str, ...]
) -> None:
    (tmp_path / "environment.yml").write_text(text)
    found = declared(tmp_path / "environment.yml", "environment.yml", {})
    assert (found.text, found.python, found.conda) == (pip, python, conda)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("environment.yml", "dependencies: [", "YAML"),
        ("environment.yml", "name: x", "`dependencies`"),
        ("environment.yml", "- six", "`dependencies`"),
        ("pyproject.toml", "[project", "TOML"),
        ("poetry.lock", "what = 1", "poetry"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, text: str, word: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(JobInvalid) as refused:
        declared(tmp_path / name, name, {})
    assert word in refused.value.problems[0].expected


def test_all_included_files_count(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\nsix\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("-c ../limits.txt\nidna\n")
    (tmp_path / "limits.txt").write_text("six<2\n")
    found = declared(tmp_path / "requirements.txt", "requirements.txt", {})
    assert sorted(found.files) == ["limits.txt", "more/base.txt", "requirements.txt"]
