"""`python -m stoker.notebooks train.ipynb …`: what `run: train.ipynb` becomes on a node."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.notebooks.document import Document, NotebookUnreadable
from stoker.notebooks.running import Notebook, NotebookRefused, trimmed

_SHORTEST = 8  # characters of a secret that is masked


def main(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """The exit code. The notebook gets the rest of the arguments in `sys.argv` and runs in its own folder, as in
    Jupyter."""
    if not arguments:
        return _refuse("usage: python -m stoker.notebooks NOTEBOOK [ARGUMENT]...")
    path = Path(arguments[0])
    try:
        document = Document(path.read_bytes(), path.name)
        document.hidden = _secrets(variables)
        notebook = Notebook(document, path, _copy(path, variables))
    except OSError as error:
        return _refuse(f"{path} cannot be read: {error.strerror}")
    except (NotebookUnreadable, NotebookRefused) as error:
        return _refuse(str(error))
    folder = path.absolute().parent
    sys.argv, sys.path[0] = list(arguments), str(folder)
    os.chdir(folder)
    os.environ.setdefault("MPLBACKEND", "module://stoker.notebooks.figures")
    try:
        notebook.run()
    except Exception as error:
        _tell(error.with_traceback(trimmed(error)))
        return 1
    return 0


def _copy(path: Path, variables: Mapping[str, str]) -> Path | None:
    """Only one process of several writes the copy."""
    if variables.get("RANK", "0") != "0":
        return None
    return Path(variables.get("STOKER_OUTPUTS", "outputs")).absolute() / path.name


def _secrets(variables: Mapping[str, str]) -> list[str]:
    """Their values. Masking shorter ones would garble ordinary text."""
    found = [variables.get(name, "").strip() for name in variables.get("STOKER_SECRETS", "").split()]
    return [value for value in found if len(value) >= _SHORTEST]


def _tell(error: Exception) -> None:
    """Uses the notebook's own excepthook if it has one. Python's does not find the lines of cells."""
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(error)
    else:
        sys.excepthook(type(error), error, error.__traceback__)


def _refuse(why: str) -> int:
    print(why, file=sys.stderr)  # noqa: T201  # the answer to whoever runs it
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], os.environ))
