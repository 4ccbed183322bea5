"""What is wrong with an input, in words: the file, the line, what was found and what was expected."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Problem(Exception):
    """Something the user can put right. `line` counts from 1; None means the file as a whole."""

    def __init__(self, file: Path | str, line: int | None, what: str) -> None:
        self.place = str(file) if line is None else f"{file}:{line}"
        super().__init__(f"{self.place}: {what}")


class Problems(Problem):
    """Several at once, so that they can be put right at once."""

    def __init__(self, file: Path | str, found: list[Problem]) -> None:
        Exception.__init__(self, "\n  ".join([f"{file} has {len(found)} problems", *map(str, found)]))


def report(file: Path | str, found: list[Problem]) -> None:
    """Raises them, if there are any."""
    if found:
        raise found[0] if len(found) == 1 else Problems(file, found)


@contextmanager
def told() -> Iterator[None]:
    """A problem ends the program with its message and exit code 1; a traceback is for bugs."""
    try:
        yield
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(1)
