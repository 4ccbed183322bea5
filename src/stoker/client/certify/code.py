"""Lines of the user's code that matter for resuming: where randomness, order and optimizer state come from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePosixPath

_LARGEST_BYTES = 1_000_000


class Trait(StrEnum):
    """What a line shows."""

    DRAWS = "random draws"
    SHUFFLES = "shuffled data"
    MOMENTUM = "an optimizer with state"
    SCHEDULE = "a learning-rate schedule"
    SAVES_DRAWS = "the random state is saved"
    SAVES_MOMENTUM = "the optimizer's state is saved"
    SAVES_SCHEDULE = "the schedule's state is saved"
    SEEDS = "a seed"
    SAVES_FILES = "a save that `exact: true` supports"
    TORCH = "PyTorch"
    NUMPY = "NumPy"
    KERAS = "Keras"
    LIGHTNING = "Lightning"
    HUGGING_FACE = "the Hugging Face Trainer"


_PATTERNS = {
    Trait.SHUFFLES: r"shuffle\s*=\s*True|\.shuffle\(|\.permutation\(|randperm\(|RandomSampler|random\.sample\(",
    Trait.DRAWS: r"[dD]ropout|random\.(random|gauss|uniform|normal\w*|choice|randint|randn?)\("
    r"|torch\.(rand|randn|randint|rand_like|randn_like|bernoulli)\b|Random(Crop|Horizontal|Vertical|Rotation|Resized|Erasing|Augment|Flip|Affine)|ColorJitter",
    Trait.MOMENTUM: r"momentum|velocity|\bAdam\w*|RMSprop|Adagrad|optim(izer)?\.step\(",
    Trait.SCHEDULE: r"lr_scheduler|LRScheduler|scheduler\.step\(",
    Trait.SAVES_DRAWS: r"random\.getstate|get_rng_state|bit_generator\.state|random\.get_state",
    Trait.SAVES_MOMENTUM: r"\bopt\w*\.state_dict\(|Checkpoint\(.*\boptimizer=",
    Trait.SAVES_SCHEDULE: r"sched\w*\.state_dict\(",
    Trait.SEEDS: r"seed\w*\(|seed_everything|default_rng\(\s*\w|Random(State)?\(\s*\w|random_state\s*=\s*\d"
    r"|PRNGKey|random\.key\(|TrainingArguments",
    Trait.SAVES_FILES: r"torch\.save\(|joblib\.dump\(|pickle\.dump\(|np\.savez?\w*\(|numpy\.savez?\w*\(|ModelCheckpoint"
    r"|\bmodel\w*\.save(_weights)?\(|save_checkpoint\(|save_file\(",
    Trait.TORCH: r"^\s*(import|from) torch\b",
    Trait.NUMPY: r"^\s*(import|from) numpy\b",
    Trait.KERAS: r"^\s*(import|from) (tensorflow\.)?keras\b|\btf\.keras\.",
    Trait.LIGHTNING: r"^\s*(import|from) (pytorch_)?lightning\b",
    Trait.HUGGING_FACE: r"^\s*from transformers import.*Trainer|\b(Seq2Seq)?Trainer\(",
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


def look(source: Path, paths: Iterable[str], command: str = "") -> tuple[CodeLine, ...]:
    """The first line of each file for each trait. `paths` are the files of the snapshot; only Python files are read,
    and only those that the command's script imports, if that can be determined."""
    texts: dict[str, str] = {}
    for path in sorted(paths):
        place = source / path
        if path.endswith(".py") and place.is_file() and place.stat().st_size <= _LARGEST_BYTES:
            texts[path] = place.read_text(encoding="utf-8", errors="replace")
    reached = _reached(texts, command) or list(texts)
    return tuple(line for path in reached for line in lines_of(path, texts[path]))


def _reached(texts: Mapping[str, str], command: str) -> list[str]:
    """The scripts that the command names, then the snapshot's files that they import, nearest first."""
    words = [word.strip("'\"") for word in command.split()]
    modules = [f"{word.replace('.', '/')}.py" for flag, word in pairwise(words) if flag == "-m"]
    found = list(dict.fromkeys(one for word in (*words, *modules) if (one := word.removeprefix("./")) in texts))
    for path in found:  # grows during the iteration
        found += [one for one in _imported(path, texts) if one not in found]
    return found


def _imported(path: str, texts: Mapping[str, str]) -> list[str]:
    try:
        tree = ast.parse(texts[path])
    except (SyntaxError, ValueError, RecursionError):
        return []
    folder = PurePosixPath(path).parent
    names: list[tuple[PurePosixPath, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(top, one.name) for one in node.names for top in (folder, PurePosixPath())]
        elif isinstance(node, ast.ImportFrom):
            above = [folder, *folder.parents]
            tops = [above[min(node.level - 1, len(above) - 1)]] if node.level else [folder, PurePosixPath()]
            parts = [".".join(filter(None, (node.module, one.name))) for one in node.names]
            names += [(top, name) for top in tops for name in filter(None, (node.module, *parts))]
    files = [top / name.replace(".", "/") for top, name in names]
    wanted = [str(one) for file in files for one in (file.with_name(f"{file.name}.py"), file / "__init__.py")]
    return list(dict.fromkeys(one for one in wanted if one in texts))


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
    """Lines of docstrings: they are not code."""
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
