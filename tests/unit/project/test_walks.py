"""The walks of the architecture page, checked against the code: every file exists, and each one reaches the next."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "stoker"
PAGE = ROOT / "docs" / "internals" / "architecture.md"
WALK = re.compile(r"<!-- walk: (.+?) -->\n(.*?)<!-- end of walk -->", re.S)
STEP = re.compile(r"^(?P<indent> *)(?P<mark>\d+\.|-) `(?P<file>[\w./]+\.py)`(?P<rest>.*)$")


@dataclass
class Step:
    file: str
    depth: int
    line: str
    words: list[str]  # what it names besides its file
    inside: list[Step] = field(default_factory=list)

    def all(self) -> list[Step]:
        return [self, *(deeper for one in self.inside for deeper in one.all())]


@cache
def shape() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_shape", ROOT / "docs" / "shape.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def walks() -> dict[str, list[Step]]:
    return {name: steps(body) for name, body in WALK.findall(PAGE.read_text(encoding="utf-8"))}


def steps(body: str) -> list[Step]:
    """The numbered ones; each contains those below it."""
    tops: list[Step] = []
    above: list[Step] = []
    for line in body.splitlines():
        found = STEP.match(line)
        assert found, f"not a step of a walk: {line!r}"
        depth = 0 if found["mark"] != "-" else 1 + (len(found["indent"]) - 3) // 2
        one = Step(found["file"], depth, line.strip(), re.findall(r"`([^`]+)`", found["rest"]))
        del above[depth:]
        assert len(above) == depth, f"indented too far: {line!r}"
        (above[-1].inside if above else tops).append(one)
        above.append(one)
    return tops


def text(step: Step) -> str:
    return (SOURCE / step.file).read_text(encoding="utf-8")


@cache
def imported(file: str) -> set[str]:
    """The files of the package that this one imports."""
    found = set()
    for name in shape().imported(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
        for module in (name, name.rpartition(".")[0]):
            place = SOURCE.joinpath(*module.split(".")[1:]) if module.startswith("stoker.") else None
            for path in (place.with_suffix(".py"), place / "__init__.py") if place else ():
                if path.is_file():
                    found.add(str(path.relative_to(SOURCE)))
    return found


def test_the_page_walks_a_run_a_checkpoint_and_an_eviction() -> None:
    assert list(walks()) == ["a run", "a checkpoint", "an eviction"]
    assert all(len(tops) >= 3 for tops in walks().values())


@pytest.mark.parametrize("name", walks())
def test_every_file_of_a_walk_is_there(name: str) -> None:
    for step in (one for top in walks()[name] for one in top.all()):
        like = [str(one.relative_to(SOURCE)) for one in SOURCE.rglob(Path(step.file).name)]
        assert (SOURCE / step.file).is_file(), f"{step.line!r}: it is gone; files of this name: {like or 'none'}"


@pytest.mark.parametrize("name", walks())
def test_every_file_of_a_walk_imports_those_below_it(name: str) -> None:
    for step in (one for top in walks()[name] for one in top.all()):
        for deeper in step.inside:
            reached = imported(step.file)
            through = sorted(one for one in reached if deeper.file in imported(one))
            hint = f"put it below one of {through}, which do" if through else f"it imports {sorted(reached)}"
            assert deeper.file in reached, f"{step.file} does not import {deeper.file}: {hint}"


@pytest.mark.parametrize("name", walks())
def test_the_steps_of_a_walk_meet_in_a_word_that_both_sides_name(name: str) -> None:
    tops = walks()[name]
    for before, after in itertools.pairwise(tops):
        told = [word for one in (*before.all(), *after.all()) for word in one.words]
        ours, theirs = "".join(map(text, before.all())), "".join(map(text, after.all()))
        shared = [word for word in told if word in ours and word in theirs]
        assert shared, f"{before.file} and {after.file} share none of the words that the page names: {told}"


def test_the_figures_of_the_page_are_those_that_the_script_counts() -> None:
    """Their values may be a few commits old: `make shape` renews them."""
    module = shape()
    told = module.names(module.told(PAGE.read_text(encoding="utf-8")))
    assert told == module.names(module.table(module.figures())), "run `make shape`"


def test_a_module_that_one_other_imports_is_counted(tmp_path: Path) -> None:
    module = shape()
    trees = {
        SOURCE / "a.py": ast.parse("from stoker.b import thing\nimport stoker.c"),
        SOURCE / "b.py": ast.parse("from stoker import c"),
        SOURCE / "c.py": ast.parse("class Same: ...\nclass _Own: ..."),
        SOURCE / "d.py": ast.parse("class Same: ...\nclass _Own: ..."),
    }
    assert module.importers(trees) == {"stoker.b": {"stoker.a"}, "stoker.c": {"stoker.a", "stoker.b"}}
    assert module.repeated(trees) == "1: `Same`"
