"""Cases for which a library was not used. If one of these fails, the library may have become good enough: read
`docs/internals/decisions.md`, and use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.client.source.ignore import Ignore, Rules
from stoker.client.submit.yamltree import Misread, parse

pathspec = pytest.importorskip("pathspec")

# A pattern, and a path for which pathspec decides the opposite of git, or whose pattern it cannot parse.
DIFFERENT = [
    ("[[:alpha:]].txt", "a.txt"),
    ("[[:digit:]]*", "5x"),
    ("foo**/bar", "foobar"),
    ("?.txt", "é.txt"),
    ("x[^a]y", "x/y"),
    ("[\\]]", "]"),
    ("x\\", "x\\"),
    ("[z-a]", "z"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("judge")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def by_git(root: Path, pattern: str, path: str) -> bool:
    (root / ".gitignore").write_bytes(pattern.encode() + b"\n")
    words = ["git", "-C", str(root), "check-ignore", "--quiet", "--no-index", "--", path]
    return subprocess.run(words, check=False).returncode == 0


def by_us(pattern: str, path: str) -> bool:
    ignore = Ignore().entering("", Rules(pattern.encode()))
    return ignore.excludes(path.rpartition("/")[2], path, is_folder=False)


def by_pathspec(pattern: str, path: str) -> bool | None:
    """None: it does not accept the pattern, and so not its file."""
    try:
        return bool(pathspec.GitIgnoreSpec.from_lines([pattern]).match_file(path))
    except Exception:  # of its own kind, and those of `re`
        return None


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize(("pattern", "path"), DIFFERENT)
def test_pathspec_leaves_out_something_else_than_git(repository: Path, pattern: str, path: str) -> None:
    judged = by_git(repository, pattern, path)
    assert by_us(pattern, path) is judged
    assert by_pathspec(pattern, path) is not judged


def test_compose_ends_the_process_where_a_job_file_is_too_deep() -> None:
    text = "[" * 200_000
    with pytest.raises(Misread) as found:
        parse(text)
    assert "levels" in found.value.problem.expected
    composing = f"import yaml; yaml.compose({'['!r} * 200_000, Loader=yaml.CSafeLoader)"
    assert subprocess.run([sys.executable, "-c", composing], capture_output=True, check=False).returncode < 0


def test_compose_forgets_where_an_alias_stands() -> None:
    yaml = pytest.importorskip("yaml")
    text = "a: &one {b: 1}\nc: *one\n"
    assert parse(text).values["c"].line == 2
    value_of_c = yaml.compose(text, Loader=yaml.CSafeLoader).value[1][1]
    assert value_of_c.start_mark.line + 1 == 1
