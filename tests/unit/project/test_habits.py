"""What people expect of a project: the forge, the hooks of git and a release do what a developer does."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]

# A ceiling: the count when the rule was made. It may fall, and does not grow.
MOST_QUOTED = 53
# The same for assertions that quote a sentence of Stoker: three words in a row that some text in `src` has, too.
MOST_SENTENCES = {"integration": 80, "": 372}  # by folder of tests; everywhere


def rule(target: str) -> list[str]:
    """The commands of a target of the Makefile, with its variables filled in."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", makefile, re.M)
    assert found, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_release", ROOT / ".ci" / "release.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hooks_of_git_run_the_tools_of_make_lint_and_make_types() -> None:
    hooks = [hook for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    entries = {hook["entry"].removesuffix(" --force-exclude") for hook in hooks}
    assert entries == {*(line.removesuffix(" .") for line in rule("lint")), "make types"}


def test_the_hooks_of_git_have_no_versions_of_their_own() -> None:
    """What they run is in `.venv`, which has exactly the lock's versions."""
    repos = load(".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["language"] for repo in repos for hook in repo["hooks"]} == {"system"}


def test_the_forge_runs_make_check_on_the_oldest_python_that_is_supported() -> None:
    workflow = load(".github/workflows/check.yml")
    job = workflow["jobs"]["check"]
    assert [step["run"] for step in job["steps"] if "make" in step.get("run", "").split()][-1] == "make check"
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest and job["container"]["image"].startswith(f"python:{oldest[1]}-")
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_an_issue_template_opens_with_what_the_forge_needs(name: str) -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert set(head) == {"name", "about", "labels"}


def test_a_wheel_that_lacks_a_file_of_the_package_is_not_published(tmp_path: Path) -> None:
    module = release()
    wheel = tmp_path / "stoker-0.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("stoker/__init__.py", "")
    with pytest.raises(module.Unfit, match=r"lacks \d+ files of the package"):
        module.require_complete(wheel, module.in_wheel(wheel))


def test_a_wheel_with_somebodys_outputs_in_it_is_not_published(tmp_path: Path) -> None:
    module = release()
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "stoker").rglob("*") if path.is_file()}
    files = {name for name in package if "__pycache__" not in name}
    module.require_complete(tmp_path / "fit.whl", files)
    with pytest.raises(module.Unfit, match=r"outputs/run-1/model\.pt"):
        module.require_complete(tmp_path / "unfit.whl", files | {"stoker/outputs/run-1/model.pt"})


def quoted(source: str) -> int:
    """How many `match=` have a text of three or more words."""
    matches = [
        keyword.value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "match"
    ]
    texts = [
        [part.value for part in ast.walk(match) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        for match in matches
    ]
    return sum(any(len(text.split()) >= 3 for text in parts) for parts in texts)


def test_no_more_tests_quote_messages_than_before() -> None:
    assert quoted('raises(A, match="`ants` is gone"); raises(B, match=f"{x} is not here"); raises(C, match="`x`")') == 2
    found = sum(quoted(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py"))
    assert found <= MOST_QUOTED, (
        "assert on the error's class, its code, its fields or a value (docs/internals/testing.md)"
    )


def phrases(text: str) -> set[tuple[str, ...]]:
    """Its words, three in a row; those of a command to copy do not count."""
    words = text.split()
    plain = [word.strip("`.,:;()'\"").replace("'", "").replace("-", "").isalpha() for word in words]
    return {
        tuple(words[at : at + 3])
        for at in range(len(words) - 2)
        if all(plain[at : at + 3]) and words[at] not in ("az", "stoker")
    }


def texts(tree: ast.AST) -> list[str]:
    found = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [text for text in found if isinstance(text, str)]


def sentences(source: str, known: set[tuple[str, ...]]) -> int:
    """How many of its assertions quote what is known."""
    claims = [node.test for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return sum(any(phrases(text) & known for text in texts(claim)) for claim in claims)


def test_no_more_assertions_quote_sentences_of_stoker_than_before() -> None:
    known = phrases("`x` has no rank 7, but others")
    assert (
        sentences('assert "it has no rank" in said\nassert "hello from afar" in said\nassert cause == "no-rank"', known)
        == 1
    )
    files = (ROOT / "src").rglob("*.py")
    known = {one for path in files for text in texts(ast.parse(path.read_text("utf-8"))) for one in phrases(text)}
    for folder, most in MOST_SENTENCES.items():
        found = sum(sentences(path.read_text("utf-8"), known) for path in (ROOT / "tests" / folder).rglob("*.py"))
        assert found <= most, f"{folder}: compare the cause, a code or a value (docs/internals/testing.md)"
