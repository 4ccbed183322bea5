"""The file that `env_file` names: `NAME=value` lines, as docker, direnv and dotenv write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.client.shellvariables import hint, secret_kind
from stoker.errors import BadInput, JobInvalid, Problem

_MOST_BYTES = 1_000_000
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*(?P<equals>=)?(?P<rest>.*)", re.ASCII)
_QUOTED = re.compile(r"""\s*(?:'(?P<plain>[^']*)'|"(?P<escaped>(?:[^"\\]|\\.)*)")\s*(?:#.*)?""", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvFile(NamedTuple):
    """Variables by name. `secrets` are those that the job lists as secrets: for the script, and for nobody else."""

    variables: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}


def read(path: Path, secrets: Collection[str], environ: Mapping[str, str]) -> EnvFile:
    """A name without `=` is taken from the environment. Raises JobInvalid where there is nothing to read, and BadInput
    with the line where something is wrong in it, or is a secret that the job does not list."""
    variables, kept = dict[str, str](), dict[str, str]()
    for line, name, value in _assignments(_text(path), path, environ):
        if name in secrets:
            kept[name] = value
            continue
        if name.startswith("STOKER_"):
            raise BadInput(f"{path}:{line}: `{name}` is Stoker's own", hint="take the line out of the file")
        if kind := secret_kind(name, value):
            raise BadInput(
                f"{path}:{line}: `{name}` looks like a secret ({kind}), and what `env_file` gives is kept with the run",
                hint=f"{hint(name)}: its value is then read from this file, and kept nowhere",
            )
        variables[name] = value
    return EnvFile(variables, kept)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES or b"\0" in data:
            raise ValueError(f"expected a text of at most {_MOST_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise JobInvalid([Problem("env_file", f"`{path}`", f"a file with lines `NAME=value`: {reason}")]) from None


def _assignments(text: str, path: Path, environ: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        bare = found and not found["equals"] and not found["rest"].strip()
        if not found or not (found["equals"] or bare):
            raise BadInput(f"{path}:{number}: expected `NAME=value`", hint="a comment begins with `#`")
        if not bare:
            yield number, found["name"], _value(found["rest"], f"{path}:{number}")
        elif found["name"] in environ:
            yield number, found["name"], environ[found["name"]]


def _value(text: str, where: str) -> str:
    """In quotes, or to the end of the line without a comment. Nothing is filled in: `$HOME` stays as it is."""
    if text.lstrip()[:1] in ("'", '"'):
        quoted = _QUOTED.fullmatch(text)
        if not quoted:
            raise BadInput(f"{where}: a quote is not closed, or something follows it")
        if quoted["plain"] is not None:
            return quoted["plain"]
        return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted["escaped"])
    return re.sub(r"(?:^|\s)#.*", "", text).strip()
