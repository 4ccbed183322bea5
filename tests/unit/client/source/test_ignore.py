"""Ignore files mean what they mean to git, and git itself is the judge."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.client.source.tree import walk

Files = dict[str, str]


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[Files], Path]:
    def make(files: Files) -> Path:
        for path, text in files.items():
            place = tmp_path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path

    return make


def kept(root: Path) -> set[str]:
    return {path for path, _ in walk(root).files} - {".gitignore", ".stokerignore"}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("", {"a.py", "a.log", "sub/a.log", "sub/deep/a.log", "logs/x"}),
        ("*.log", {"a.py", "logs/x"}),
        ("/*.log", {"a.py", "sub/a.log", "sub/deep/a.log", "logs/x"}),
        ("sub/*.log", {"a.py", "a.log", "sub/deep/a.log", "logs/x"}),
        ("sub/**/*.log", {"a.py", "a.log", "logs/x"}),
        ("**/deep", {"a.py", "a.log", "sub/a.log", "logs/x"}),
        ("logs/", {"a.py", "a.log", "sub/a.log", "sub/deep/a.log"}),
        ("x/\na.py/", {"a.py", "a.log", "sub/a.log", "sub/deep/a.log", "logs/x"}),
        ("*.log\n!sub/a.log", {"a.py", "sub/a.log", "logs/x"}),
        ("sub\n!sub/a.log", {"a.py", "a.log", "logs/x"}),
        ("*\n!*/\n!*.py", {"a.py"}),
        ("# a.py\n\\a.log", {"a.py", "logs/x"}),
        ("a.py   \n[a-b].log", {"logs/x"}),
        ("\ufeffa.py\r\n", {"a.log", "sub/a.log", "sub/deep/a.log", "logs/x"}),
    ],
)
def test_patterns_leave_out_what_git_would(tree: Callable[[Files], Path], patterns: str, expected: set[str]) -> None:
    files = dict.fromkeys(("a.py", "a.log", "sub/a.log", "sub/deep/a.log", "logs/x"), "")
    assert kept(tree(files | {".gitignore": patterns})) == expected


def test_a_deeper_ignore_file_overrules_those_above(tree: Callable[[Files], Path]) -> None:
    root = tree({".gitignore": "*.bin", "a.bin": "", "keep/.gitignore": "!*.bin", "keep/b.bin": ""})
    assert kept(root) == {"keep/.gitignore", "keep/b.bin"}


def test_stokerignore_is_read_after_gitignore(tree: Callable[[Files], Path]) -> None:
    root = tree({".gitignore": "*.bin", ".stokerignore": "!model.bin\nnotes.txt", "model.bin": "", "notes.txt": ""})
    assert kept(root) == {"model.bin"}


def test_some_folders_are_left_out_whatever_the_ignore_files_say(tree: Callable[[Files], Path]) -> None:
    always = [".git/config", "__pycache__/a.pyc", "a/.ipynb_checkpoints/n.ipynb", "a/.DS_Store", ".stoker/x"]
    root = tree(dict.fromkeys([*always, "env/pyvenv.cfg", "env/lib/site.py", "a/b.py"], "") | {".gitignore": "!*"})
    assert kept(root) == {"a/b.py"}


def test_a_source_folder_that_is_itself_a_virtual_environment_is_still_taken(tree: Callable[[Files], Path]) -> None:
    assert kept(tree({"pyvenv.cfg": "", "train.py": ""})) == {"pyvenv.cfg", "train.py"}


def test_rules_reach_into_a_source_folder_from_the_repository_around_it(tree: Callable[[Files], Path]) -> None:
    files = {".git/HEAD": "", ".gitignore": ".env\n/work/*.bin\n", "work/.gitignore": "*.tmp"}
    root = tree(files | {f"work/job/{name}": "" for name in (".env", "a.bin", "a.tmp", "é.py")})
    assert kept(root / "work" / "job") == {"a.bin", "é.py"}
    assert kept(root / "work") == {"job/a.bin", "job/é.py"}


def test_rules_around_a_source_folder_that_leave_it_out_do_not_count(tree: Callable[[Files], Path]) -> None:
    root = tree({".git/HEAD": "", ".gitignore": "scratch/**\n*.py", "scratch/job/a.py": ""})
    assert kept(root / "scratch" / "job") == {"a.py"}


def test_rules_above_a_folder_outside_of_any_repository_do_not_count(tree: Callable[[Files], Path]) -> None:
    assert kept(tree({".gitignore": "*.py", "job/a.py": ""}) / "job") == {"a.py"}


def test_an_ignore_file_that_is_a_link_is_not_followed(tree: Callable[[Files], Path]) -> None:
    root = tree({"rules": "*.py", "a.py": ""})
    (root / ".gitignore").symlink_to("rules")
    assert kept(root) == {"rules", "a.py"}


def test_a_pattern_full_of_stars_takes_no_time(tree: Callable[[Files], Path]) -> None:
    root = tree({".gitignore": "*a*a*a*a*a*a*a*a*b\nx/*a*a*a*a*a*a*a*a*b", "a" * 200: "", f"x/{'a' * 200}": ""})
    start = time.process_time()
    assert len(kept(root)) == 2
    assert time.process_time() - start < 1


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    yield root


names = st.sampled_from(["a", "b", "ab", "foo", "foobar", "x.py", "a b", "é", "a[b]", "!n", "#h", "-", "ba]", "a\\b"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
words = ["a", "b", "foo", "bar", "x.py", "é", "-", " ", "!", "#", "]"]
wildcards = ["*", "**", "***", "?", "/", "/", "**/", "/**", "\\", "\\*", "\\ ", "\\/"]
sets = ["[ab]", "[!a]", "[^b]", "[a-c]", "[b-a]", "[]a]", "[\\]]", "[a\\-z]", "[.-0]", "[", "[[:"]
classes = ["[[:alpha:]]", "[[:nonsense:]]", "[[:digit:][:space:]]", "[![:punct:]]"]
pieces = st.sampled_from([*words, *wildcards, *sets, *classes])
lines = st.builds(
    lambda mark, body, end: mark + "".join(body) + end,
    st.sampled_from(["", "", "", "!", "/", "!/"]),
    st.lists(pieces, min_size=1, max_size=5),
    st.sampled_from(["", "", "/", " ", "\r"]),
)
ignore_files = st.lists(lines, min_size=1, max_size=5).map("\n".join)


def fill(root: Path, files: list[str], ignores: dict[str, str], name: str) -> None:
    for entry in root.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for path in files:
        place = root / path
        if not any(parent.is_file() for parent in place.parents) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    for folder, text in ignores.items():
        if (root / folder).is_dir():
            (root / folder / name).write_bytes(text.encode())


@pytest.mark.parametrize("name", [".gitignore", ".stokerignore"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(paths, min_size=1, max_size=12),
    ignores=st.dictionaries(st.sampled_from(["", "a", "foo", "a/b", "ab/a"]), ignore_files, min_size=1),
)
def test_what_is_kept_is_what_git_keeps(repository: Path, name: str, files: list[str], ignores: dict[str, str]) -> None:
    fill(repository, files, ignores, name)
    listing = ["git", "-C", str(repository), "ls-files", "-z", "--others", f"--exclude-per-directory={name}"]
    listed = subprocess.run(listing, check=True, capture_output=True).stdout
    assert {path for path, _ in walk(repository).files} == {os.fsdecode(path) for path in listed.split(b"\0") if path}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(paths, min_size=1, max_size=8), first=ignore_files, second=ignore_files)
def test_two_ignore_files_are_one_after_the_other(repository: Path, files: list[str], first: str, second: str) -> None:
    fill(repository, files, {"": first}, ".gitignore")
    (repository / ".stokerignore").write_bytes(second.encode())
    both = kept(repository)
    (repository / ".stokerignore").unlink()
    (repository / ".gitignore").write_bytes(f"{first}\n{second}".encode())
    assert kept(repository) == both
