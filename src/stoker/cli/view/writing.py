"""Files that somebody asks for with an option of a command."""

from __future__ import annotations

from pathlib import Path

from stoker.errors import BadInput
from stoker.model.cause import Cause


def write_file(file: Path, text: str, option: str) -> None:
    """Raises BadInput where that is not possible."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{file} is not writable: {error.strerror}",
            hint=f"choose another file with {option}",
            cause=Cause.FILE_UNWRITABLE,
        ) from error
