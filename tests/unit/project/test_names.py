"""One name per class: a reader who meets a name twice may think it is the same thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "stoker"

# One class per framework, each named in its user's own import: `from stoker.checkpoint.keras import StokerCallback`.
THE_SAME_THING = {"StokerCallback"}


def trees(source: Path) -> dict[Path, ast.Module]:
    return {path.relative_to(source): ast.parse(path.read_text(encoding="utf-8")) for path in source.rglob("*.py")}


def package(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def arrows(modules: dict[Path, ast.Module]) -> set[frozenset[str]]:
    """Pairs of packages of which one imports the other, somewhere; a package and itself is a pair, too."""
    found = {frozenset((package(path),)) for path in modules}
    for path, tree in modules.items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            found |= {frozenset((package(path), one.split(".")[1])) for one in names if one.startswith("stoker.")}
    return found


def repeated(modules: dict[Path, ast.Module]) -> list[str]:
    """Names of several classes at the top of a module. A public name has one class in the whole tree. A private one
    (`_Name`) may have one in each package, but not in two packages of which one imports the other: whoever follows a
    call from one to the other reads both."""
    places: dict[str, list[Path]] = defaultdict(list)
    for path, tree in sorted(modules.items()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    related = arrows(modules)
    return [
        f"{name}: {one} and {other}"
        for name, found in sorted(places.items())
        for one, other in combinations(found, 2)
        if not name.startswith("_") or frozenset((package(one), package(other))) in related
    ]


def test_every_class_has_a_name_of_its_own() -> None:
    assert [one for one in repeated(trees(SOURCE)) if one.partition(":")[0] not in THE_SAME_THING] == []


def test_a_name_that_two_classes_share_is_found(tmp_path: Path) -> None:
    files = {
        "model/job.py": "class Job: ...\nclass _Reader: ...",
        "client/ask.py": "from stoker.model.job import Job\nclass Ask: ...\nclass _Reader: ...",
        "twin/world.py": "class Job: ...\nclass _Reader: ...",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert repeated(trees(tmp_path)) == [
        "Job: model/job.py and twin/world.py",
        "_Reader: client/ask.py and model/job.py",
    ]
