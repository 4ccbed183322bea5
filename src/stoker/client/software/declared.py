"""What a file of requirements declares, whoever wrote it: pip's, a project's, poetry's lock or conda's environment."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client.software.packages import Requirement, normal, parse
from stoker.errors import JobInvalid, Problem

_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)(?:\s+|=)?(\S+)", re.M)
_CONDA_PYTHON = re.compile(r"python\s*=+\s*(\d+\.\d+)(?:\.\d+)?(?:\.?\*)?(?:=.*)?")
_NOT_A_PACKAGE = re.compile(r"(python|pip)\b")


@dataclass(frozen=True, slots=True)
class Declared:
    text: str = ""  # as a requirements file; empty: the file itself is one that uv reads
    locked: bool = False  # `text` has exact versions with hashes
    python: str = ""  # the version that it names; empty: none
    conda: tuple[str, ...] = ()  # packages that only conda installs
    files: Mapping[str, str] = field(default_factory=dict)  # the texts that count, by name

    def content(self) -> Iterator[str]:
        yield self.text
        for name, text in sorted(self.files.items()):
            yield from (name, text)


def declared(file: Path, name: str, surroundings: Mapping[str, str]) -> Declared:
    """Raises JobInvalid where the file cannot be read as what its name says."""
    if file.name == "poetry.lock" or _is_poetry(file):
        return _poetry(file.with_name("poetry.lock"), name, surroundings)
    if file.suffix in (".yml", ".yaml"):
        return _conda(file, name)
    if file.name == "pyproject.toml":
        _toml(file, name)
        return Declared(files={name: file.read_text(errors="replace")})
    return Declared(files=dict(_included(file)))


def _included(file: Path) -> Iterator[tuple[str, str]]:
    """It, and the files that it names; one that is missing is reported by the resolver."""
    waiting, seen = [file], set[Path]()
    while waiting:
        one = waiting.pop().resolve()
        if one in seen or not one.is_file():
            continue
        seen.add(one)
        text = one.read_text(errors="replace")
        yield os.path.relpath(one, file.parent), text
        waiting += [one.parent / found for found in _INCLUDED.findall(text) if "://" not in found]


def _toml(file: Path, name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(name, f"valid TOML: {error}") from None


def _invalid(name: str, expected: str) -> JobInvalid:
    return JobInvalid([Problem("environment.requirements", f"`{name}`", expected)])


def _is_poetry(file: Path) -> bool:
    """A project whose dependencies only poetry's own table names, next to its lock."""
    if file.name != "pyproject.toml" or not file.with_name("poetry.lock").is_file():
        return False
    return not file.with_name("uv.lock").is_file()


def _poetry(file: Path, name: str, surroundings: Mapping[str, str]) -> Declared:
    """Poetry has resolved it: what is left to do is to write it down as pip does."""
    if not file.is_file():
        raise _invalid(name, "a `poetry.lock` beside it; create it with `poetry lock`")
    told = _toml(file, name)
    packages = [one for one in told.get("package", ()) if isinstance(one, dict)]
    if not packages and "metadata" not in told:
        raise _invalid(name, "a lock that poetry has written")
    old = told.get("metadata", {}).get("files", {})  # before poetry 1.5 hashes were at the end
    markers = _markers(file, packages, surroundings)
    lines = [_poetry_line(one, one.get("files") or old.get(one["name"], ()), markers, name) for one in packages]
    return Declared(text="".join(f"{line}\n" for line in lines if line), locked=True)


def _poetry_line(one: Mapping[str, Any], files: Any, markers: Mapping[str, str], name: str) -> str:
    """Empty where the project itself does not need it: only its developers, or an extra."""
    own = normal(str(one["name"]))
    if own not in markers:
        return ""
    source = one.get("source", {})
    if source.get("type") in ("directory", "file"):
        expected = f"packages that machines can install: `{own}` is at {source.get('url')} on this computer"
        raise _invalid(name, expected)
    marker = f" ; {markers[own]}" if markers[own] else ""
    if source.get("type") == "git":
        return f"{own} @ git+{source['url']}@{source.get('resolved_reference', source.get('reference', ''))}{marker}"
    if source.get("type") == "url":
        return f"{own} @ {source['url']}{marker}"
    hashes = "".join(f" \\\n    --hash={file['hash']}" for file in files if str(file.get("hash", "")).count(":") == 1)
    return f"{own}=={one['version']}{marker}{hashes}"


def _markers(file: Path, packages: list[dict[str, Any]], surroundings: Mapping[str, str]) -> dict[str, str]:
    """The packages that are needed, with a condition where the lock has one. Older locks have none: there what is
    needed on this platform is found along the dependencies."""
    if all("groups" in one for one in packages):
        return {
            normal(one["name"]): _marker(one.get("markers"))
            for one in packages
            if "main" in one["groups"] and not one.get("optional")
        }
    known = {normal(one["name"]): one for one in packages}
    roots = _roots(file.with_name("pyproject.toml"), surroundings)
    if roots is None:
        roots = [
            name for name, one in known.items() if one.get("category", "main") == "main" and not one.get("optional")
        ]
    found: dict[str, str] = {}
    waiting = [name for name in roots if name in known]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = ""
            waiting += [other for other in _dependencies(known[name], surroundings) if other in known]
    return found


def _dependencies(one: Mapping[str, Any], surroundings: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in one.get("dependencies", {}).items():
        if any(_holds(form, surroundings) for form in (wanted if isinstance(wanted, list) else [wanted])):
            yield normal(name)


def _holds(form: Any, surroundings: Mapping[str, str]) -> bool:
    if not isinstance(form, dict):
        return True
    return not form.get("optional") and Requirement("", marker=str(form.get("markers", ""))).holds(surroundings)


def _roots(project: Path, surroundings: Mapping[str, str]) -> list[str] | None:
    """What the project itself requires; None: it does not say."""
    told = _toml(project, project.name) if project.is_file() else {}
    own = [parse(str(line)) for line in told.get("project", {}).get("dependencies", ())]
    found = [one.name for one in own if one and one.holds(surroundings)]
    for name, wanted in told.get("tool", {}).get("poetry", {}).get("dependencies", {}).items():
        if name.lower() != "python" and any(
            _holds(form, surroundings) for form in (wanted if isinstance(wanted, list) else [wanted])
        ):
            found.append(normal(name))
    return found or None


def _marker(told: Any) -> str:
    """Of a package that several groups need, poetry writes one for each."""
    if isinstance(told, dict):
        told = told.get("main")
    return " ".join(told.split()) if isinstance(told, str) else ""


def _conda(file: Path, name: str) -> Declared:
    import yaml  # only when there is such a file

    try:
        told = yaml.safe_load(file.read_text(encoding="utf-8"))
        wanted = told["dependencies"]
        plain = [one for one in wanted if isinstance(one, str)]
        pip = [str(line) for one in wanted if isinstance(one, dict) for line in one.get("pip", ())]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _invalid(name, f"valid YAML: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError, AttributeError):
        raise _invalid(name, "a conda environment with a list of `dependencies`") from None
    versions = [found[1] for one in plain if (found := _CONDA_PYTHON.fullmatch(one.strip()))]
    conda = tuple(one for one in plain if not _NOT_A_PACKAGE.fullmatch(re.split(r"[\s=<>!~\[]", one.strip())[0]))
    python = versions[0] if versions else ""
    return Declared("".join(f"{one}\n" for one in pip), python=python, conda=conda, files={name: ""})
