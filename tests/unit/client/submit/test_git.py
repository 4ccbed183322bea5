"""Where code came from, as git has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.client.submit.surroundings import GitLook
from stoker.model.snapshot import Git


def git(folder: Path, *words: str) -> str:
    person = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=trunk")
    (root / "sub").mkdir()
    for path in ("train.py", "sub/model.py"):
        (root / path).write_text("pass\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    return root


def head(repository: Path) -> str:
    return git(repository, "rev-parse", "HEAD")


def test_a_clean_tree_is_its_commit_on_its_branch(repository: Path) -> None:
    assert GitLook(repository).facts() == Git(head(repository), "trunk", dirty=False)


def test_a_changed_file_makes_the_tree_dirty(repository: Path) -> None:
    (repository / "train.py").write_text("changed\n")
    assert GitLook(repository).facts() == Git(head(repository), "trunk", dirty=True)


def test_a_new_file_makes_the_tree_dirty(repository: Path) -> None:
    (repository / "new.py").touch()
    assert GitLook(repository).facts() == Git(head(repository), "trunk", dirty=True)


def test_an_ignored_file_does_not(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("*.log\n")
    (repository / "a.log").touch()
    assert GitLook(repository).facts() == Git(head(repository), "trunk", dirty=False)


def test_a_folder_is_dirty_by_what_is_inside_it(repository: Path) -> None:
    (repository / "train.py").write_text("changed\n")
    assert GitLook(repository / "sub").facts() == Git(head(repository), "trunk", dirty=False)
    (repository / "sub" / "model.py").write_text("changed\n")
    assert GitLook(repository / "sub").facts() == Git(head(repository), "trunk", dirty=True)


def test_a_branch_with_slashes_whose_refs_are_packed(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "feature/a.b+c")
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git" / "refs" / "heads" / "feature").exists()
    assert GitLook(repository).facts() == Git(head(repository), "feature/a.b+c", dirty=False)


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "--detach")
    assert GitLook(repository).facts() == Git(head(repository), "", dirty=False)


def test_a_worktree_has_its_own_head(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "train.py").write_text("on the side\n")
    git(tmp_path / "side", "commit", "--quiet", "--all", "--message=second")
    assert GitLook(tmp_path / "side").facts() == Git(head(tmp_path / "side"), "side", dirty=False)
    assert GitLook(repository).facts() == Git(head(repository), "trunk", dirty=False)
    assert head(tmp_path / "side") != head(repository)


def test_what_the_files_do_not_say_is_asked_of_git(repository: Path) -> None:
    commit = head(repository)
    git(repository, "symbolic-ref", "refs/heads/alias", "refs/heads/trunk")
    git(repository, "symbolic-ref", "HEAD", "refs/heads/alias")  # a reference to a reference
    facts = GitLook(repository).facts()
    assert facts
    assert facts.commit == commit


def test_a_repository_without_a_commit_has_no_facts(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert GitLook(tmp_path).facts() is None


def test_a_folder_outside_of_any_repository_has_no_facts(tmp_path: Path) -> None:
    assert GitLook(tmp_path).facts() is None


def test_a_repository_that_is_damaged_has_no_facts(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert GitLook(tmp_path).facts() is None
    (tmp_path / ".git").rmdir()
    (tmp_path / ".git").write_bytes(b"gitdir: nowhere\xff")
    assert GitLook(tmp_path).facts() is None


def test_without_git_installed_there_are_no_facts(repository: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from stoker.client.submit.surroundings import GitLook; "
        "print(GitLook(Path(sys.argv[1])).facts())"
    )
    run = [sys.executable, "-c", program, str(repository)]
    said = subprocess.run(run, check=True, capture_output=True, text=True, env={"PATH": ""}).stdout
    assert said == "None\n"


def test_the_look_continues_in_the_background_and_may_be_asked_twice(repository: Path) -> None:
    look = GitLook(repository)
    assert look.facts() == look.facts() == Git(head(repository), "trunk", dirty=False)


def test_a_look_leaves_the_index_of_the_repository_alone(repository: Path) -> None:
    index = repository / ".git" / "index"
    (repository / "train.py").touch()  # a git with locks would write down that the file has not changed
    before = index.stat().st_mtime_ns, index.read_bytes()
    GitLook(repository).facts()
    assert (index.stat().st_mtime_ns, index.read_bytes()) == before
