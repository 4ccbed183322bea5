"""Which packages a script needs: those it imports, their requirements, and those loaded without a visible import."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stoker.client.software.imports import Import
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.markers import Requirement, normal

# Extras for developers of the package itself, or that only collect the others.
_FOR_DEVELOPERS = re.compile(
    r"(dev|develop|test|tests|testing|doc|docs|lint|linting|typing|types|type|mypy|style|quality|build|building|release"
    r"|bench|benchmark|benchmarks|example|examples|maintenance|ci|all|full|complete|tutorial|tutorials|notebook|notebooks"
    r"|docker|coverage|profiling|packaging|publish)(-.*)?|.*-(dev|test|tests|testing|docs|all)"
)
_TOOLS = re.compile(
    r"(pytest|sphinx|jupyter|flake8|pylint|nbval|types)(-.*)?|ruff|black|isort|mypy|pyright|ipython|notebook|"
    r"pre-commit|coverage|tox|nox|twine|build|hypothesis"
)
# A script uses one of these, and a library that supports several names them all.
_FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "jax", "flax", "keras", "mxnet", "paddlepaddle")
_KERAS = {"torch": ("torch",), "jax": ("jax",), "tensorflow": ("tensorflow", "tensorflow-cpu")}
# What a module loads by a name that its package does not declare.
_COMPANIONS = {
    "torch.utils.tensorboard": ("tensorboard",),
    "lightning": ("tensorboard",),
    "pytorch_lightning": ("tensorboard",),
    "evaluate": ("scikit-learn", "scipy"),
    "transformers": ("accelerate", "sentencepiece", "protobuf", "tiktoken"),
}
_OURS = "stoker"  # nodes already have it


def closure(
    names: Mapping[str, frozenset[str]], installed: Installed, surroundings: Mapping[str, str]
) -> dict[str, Distribution]:
    """These packages, by name with the extras in use, and all their requirements that are installed here."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras) for name, extras in names.items()]
    while waiting:
        name, extras = waiting.pop()
        one = installed.by_name.get(name)
        if one is None or name == _OURS or (name, extras) in done:
            continue
        done.add((name, extras))
        found[name] = one
        waiting += [(need.name, need.extras) for need in one.requires if need.holds(surroundings, extras)]
    return dict(sorted(found.items()))


def imported(imports: Iterable[Import], installed: Installed) -> tuple[dict[str, list[Distribution]], list[Import]]:
    """Module to the packages it belongs to, and the imports that no package provides."""
    found: dict[str, list[Distribution]] = {}
    lost: list[Import] = []
    for one in imports:
        if one.top == _OURS:
            continue
        if owners := installed.owners(one.name):
            found[one.name] = owners
        elif not any(one.top == other.top for other in lost):
            lost.append(one)
    return found, lost


def unseen(
    modules: Mapping[str, list[Distribution]],
    installed: Installed,
    surroundings: Mapping[str, str],
    keras_backend: str,
) -> set[str]:
    """Installed packages that are loaded without a visible import: optional parts of what the script imports, back ends
    and the like."""
    direct = {one.name: one for owners in modules.values() for one in owners}
    reached = set(closure(dict.fromkeys(direct, frozenset()), installed, surroundings))
    named = {
        need.name
        for one in direct.values()
        for need in one.requires
        if need.name in installed.by_name and not _TOOLS.fullmatch(need.name) and _is_optional(need, surroundings)
    }
    tops = {module.partition(".")[0] for module in modules}
    for module, others in _COMPANIONS.items():
        if module in tops or any(f"{one}.".startswith(f"{module}.") for one in modules):
            named |= {other for other in others if other in installed.by_name}
    kept = next((name for name in _FRAMEWORKS if name in named), "") if reached.isdisjoint(_FRAMEWORKS) else ""
    return named - (set(_FRAMEWORKS) - {kept}) | _keras(tops, installed, keras_backend)


def _is_optional(need: Requirement, surroundings: Mapping[str, str]) -> bool:
    groups = [group for group in need.groups if not _FOR_DEVELOPERS.fullmatch(group)]
    return any(need.holds(surroundings, frozenset({group})) for group in groups)


def _keras(tops: set[str], installed: Installed, backend: str) -> set[str]:
    """Keras declares none of its back ends."""
    if "keras" not in tops:
        return set()
    wanted = [backend] if backend in _KERAS else ["tensorflow", "jax", "torch"]
    for one in wanted:
        if here := {name for name in _KERAS[one] if name in installed.by_name}:
            return here
    return set()


def named_beside(folders: Iterable[Path]) -> set[str]:
    """The requirements of a `requirements.txt` or `pyproject.toml` in these folders, by name."""
    found: set[str] = set()
    for folder in dict.fromkeys(folders):
        for file in (folder / "requirements.txt", folder / "pyproject.toml"):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found |= set(_listed(text) if file.suffix == ".txt" else _declared(text))
    return found


def _listed(text: str) -> Iterable[str]:
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
        if match and "://" not in line.partition(" @ ")[0]:
            yield normal(match[1])


def _declared(text: str) -> Iterable[str]:
    import tomllib  # not needed for a run on this computer

    try:
        told = tomllib.loads(text).get("project", {}).get("dependencies", [])
    except tomllib.TOMLDecodeError:
        return
    yield from (normal(match[0]) for one in told if (match := re.match(r"[A-Za-z0-9][\w.-]*", str(one))))
