"""Counts the code, and writes the figures into `docs/internals/architecture.md` between its markers.

    python docs/shape.py            writes them
    python docs/shape.py --check    fails where the page has no place for them, or another set of figures

Figures change with every commit, so a test compares which figures there are, and not their values.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stoker"
PAGE = ROOT / "docs" / "internals" / "architecture.md"
BEGIN, END = "<!-- shape: written by `make shape` -->", "<!-- end of shape -->"
SHORT = 60


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in arguments:
        return 0 if names(told(text)) == names(table(figures())) else 1
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(figures())}{END}{after}", encoding="utf-8")
    return 0


def told(page: str) -> str:
    """What stands between the markers. Raises ValueError where they are missing."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def names(block: str) -> list[str]:
    return re.findall(r"^\| ([^|]+?) \|", block, re.M)


def table(rows: dict[str, str]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["\n| figure | value |", "|---|---|", *lines, ""])


def figures() -> dict[str, str]:
    files = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in files.items()}
    trees = {path: ast.parse(text) for path, text in files.items()}
    largest = max(lines, key=lambda path: lines[path])
    alone = [name for name, users in importers(trees).items() if len(users) == 1]
    return {
        "files": str(len(files)),
        "lines": f"{sum(lines.values()):,}",
        "lines of the median file": f"{median(lines.values()):g}",
        "largest file": f"`{largest.relative_to(SOURCE)}`, {lines[largest]} lines",
        f"files of fewer than {SHORT} lines, without `__init__.py`": str(
            sum(count < SHORT and path.name != "__init__.py" for path, count in lines.items())
        ),
        "modules with one importer": str(len(alone)),
        "most files in one folder": fullest(files),
        "class names with several classes": repeated(trees),
        "files of `src/` that the last store touched": last_store(),
        "files outside of plug-ins that import a kind of store": naming_kinds(files),
    }


def importers(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """The modules that import each module, by name; entry points and packages are imported by nobody or by all."""
    modules = {module(path): path for path in trees if path.stem not in ("__init__", "__main__")}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for name in imported(tree):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module(path):
                found[target].add(module(path))
    return found


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> set[str]:
    """Absolute names: of `from a import b`, both `a` and `a.b`, since `b` may be a module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def fullest(files: dict[Path, str]) -> str:
    folder, count = Counter(path.parent for path in files).most_common(1)[0]
    return f"`{folder.relative_to(SOURCE)}/`, {count}"


def repeated(trees: dict[Path, ast.Module]) -> str:
    """Classes that a module shows: those whose name begins with `_` are its own business."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path)
    several = sorted(name for name, found in places.items() if len(found) > 1)
    listed = ", ".join(f"`{name}`" for name in several[:10]) + (", …" if len(several) > 10 else "")
    return f"{len(several)}: {listed}" if several else "0"


def last_store() -> str:
    """By the youngest commit that added a kind of store and no provider. The kind that carries folders to SSH hosts was
    added together with its provider, and such a commit does not show what a store requires."""
    log = git("log", "--diff-filter=A", "--format=%x00%H", "--name-only", "--", "src/stoker/stores/*/kind.py")
    for commit, kind in re.findall(r"\0([0-9a-f]{40})\n\nsrc/stoker/stores/(\w+)/kind\.py", log):
        if git("show", "--diff-filter=A", "--format=", "--name-only", commit, "--", "src/stoker/providers"):
            continue
        touched = git("show", "--format=", "--name-only", commit, "--", "src").split()
        outside = [path for path in touched if not path.startswith(f"src/stoker/stores/{kind}/")]
        return f"{len(outside)} outside of `stores/{kind}/`, {len(touched) - len(outside)} in it"
    return "unknown: no store has a folder of its own in the history that is here"


def naming_kinds(files: dict[Path, str]) -> str:
    """Files outside of the folders of plug-ins that import a kind of store by name; `folder` is the one that is
    everywhere: agents, tests and the server's own computer use it as such."""
    kinds = sorted(path.parent.name for path in files if path.name == "kind.py" and path.parent.name != "folder")
    plugins = (SOURCE / "stores", SOURCE / "providers", SOURCE / "testing")
    naming = [
        path
        for path, text in files.items()
        if not any(path.is_relative_to(one) for one in plugins)
        and any(f"stoker.stores.{kind}" in text for kind in kinds)
    ]
    listed = ": " + ", ".join(f"`{path.relative_to(SOURCE)}`" for path in naming[:5]) if naming else ""
    return f"{len(naming)}{listed}"


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
