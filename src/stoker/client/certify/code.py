"""Lines of the user's code that bear on resuming: where randomness, order and optimizer state come from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_LARGEST_BYTES = 1_000_000


class Trait(StrEnum):
    """What a line shows."""

    DRAWS = "random draws"
    SHUFFLES = "shuffled data"
    MOMENTUM = "an optimizer with state"
    SCHEDULE = "a learning-rate schedule"
    SAVES_DRAWS = "the random state is kept"
    SAVES_MOMENTUM = "the optimizer's state is kept"
    SAVES_SCHEDULE = "the schedule's state is kept"
    TORCH = "PyTorch"
    NUMPY = "NumPy"


_PATTERNS = {
    Trait.SHUFFLES: r"shuffle\s*=\s*True|\.shuffle\(|\.permutation\(|randperm\(|RandomSampler|random\.sample\(",
    Trait.DRAWS: r"[dD]ropout|random\.(random|gauss|uniform|normal\w*|choice|randint|randn?)\("
    r"|torch\.(randn?|bernoulli)|Random(Crop|Horizontal|Vertical|Rotation|Resized|Erasing|Augment|Flip|Affine)|ColorJitter",
    Trait.MOMENTUM: r"momentum|velocity|\bAdam\w*|RMSprop|Adagrad|optim(izer)?\.step\(",
    Trait.SCHEDULE: r"lr_scheduler|LRScheduler|scheduler\.step\(",
    Trait.SAVES_DRAWS: r"random\.getstate|get_rng_state|bit_generator\.state|random\.get_state",
    Trait.SAVES_MOMENTUM: r"\bopt\w*\.state_dict\(|Checkpoint\(.*\boptimizer=",
    Trait.SAVES_SCHEDULE: r"sched\w*\.state_dict\(",
    Trait.TORCH: r"^\s*(import|from) torch\b",
    Trait.NUMPY: r"^\s*(import|from) numpy\b",
}
_COMPILED = {trait: re.compile(pattern) for trait, pattern in _PATTERNS.items()}


@dataclass(frozen=True, slots=True)
class CodeLine:
    """The first line of a file that shows a trait."""

    trait: Trait
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def look(source: Path, paths: Iterable[str]) -> tuple[CodeLine, ...]:
    """The first line of each file for each trait. `paths` are the files of the snapshot; only Python is read."""
    found: list[CodeLine] = []
    for path in sorted(paths):
        place = source / path
        if path.endswith(".py") and place.is_file() and place.stat().st_size <= _LARGEST_BYTES:
            found += lines_of(path, place.read_text(encoding="utf-8", errors="replace"))
    return tuple(found)


def lines_of(file: str, text: str) -> list[CodeLine]:
    found: dict[Trait, CodeLine] = {}
    told = _told(text)
    for number, line in enumerate(text.splitlines(), 1):
        code = "" if number in told else line.partition("#")[0]
        for trait, pattern in _COMPILED.items():
            if trait not in found and pattern.search(code):
                found[trait] = CodeLine(trait, file, number, line.strip()[:100])
    return list(found.values())


def _told(text: str) -> set[int]:
    """Lines of docstrings: they speak of things, and do nothing."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
