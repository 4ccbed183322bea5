"""Lines of the user's code that matter for resuming, and lines to add to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    DDP = "DistributedDataParallel"
    NUMPY = "NumPy"
    KERAS = "Keras"
    LIGHTNING = "Lightning"
    HUGGING_FACE = "the Hugging Face Trainer"


def _imports(name: str) -> str:
    """Also as one of several: `import os, time, torch`."""
    return rf"^\s*(from {name}\b|import ([^#]*[, ])?{name}\b)"


_PATTERNS = {
    Trait.SHUFFLES: r"shuffle\s*=\s*True|\.shuffle\(|\.permutation\(|randperm\(|RandomSampler|random\.sample\(",
    Trait.DRAWS: r"[dD]ropout|random\.(random|gauss|uniform|normal\w*|choice|randint|randn?)\("
    r"|torch\.(rand|randn|randint|rand_like|randn_like|bernoulli)\b|Random(Crop|Horizontal|Vertical|Rotation|Resized|Erasing|Augment|Flip|Affine)|ColorJitter",
    Trait.MOMENTUM: r"momentum|velocity|\bAdam\w*|RMSprop|Adagrad|optim(izer)?\.step\(",
    Trait.SCHEDULE: r"lr_scheduler|LRScheduler|scheduler\.step\(",
    Trait.SAVES_DRAWS: r"random\.getstate|get_rng_state|bit_generator\.state|random\.get_state",
    Trait.SAVES_MOMENTUM: r"\bopt\w*\.state_dict\(|Checkpoint\(.*\boptimizer=",
    Trait.SAVES_SCHEDULE: r"sched\w*\.state_dict\(",
    Trait.SEEDS: r"seed\w*\(\s*[^)\s]|seed_everything|default_rng\(\s*\w|Random(State)?\(\s*\w|random_state\s*=\s*\d"
    r"|PRNGKey|random\.key\(|TrainingArguments",
    Trait.SAVES_FILES: r"torch\.save\(|joblib\.dump\(|pickle\.dump\(|np\.savez?\w*\(|numpy\.savez?\w*\(|ModelCheckpoint"
    r"|\bmodel\w*\.save(_weights)?\(|save_checkpoint\(|save_file\(",
    Trait.TORCH: _imports("torch"),
    Trait.DDP: r"\bDistributedDataParallel\(|\bDDP\(",
    Trait.NUMPY: _imports("numpy"),
    Trait.KERAS: _imports(r"(tensorflow\.)?keras") + r"|\btf\.keras\.",
    Trait.LIGHTNING: _imports("(pytorch_)?lightning"),
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
    and only those that the command's script imports. If no script can be determined, all are, and their lines have the
    number 0: none of them may be the one that matters."""
    texts: dict[str, str] = {}
    for path in sorted(paths):
        place = source / path
        if path.endswith((".py", ".sh")) and place.is_file() and place.stat().st_size <= _LARGEST_BYTES:
            texts[path] = place.read_text(encoding="utf-8", errors="replace")
    if reached := _reached(texts, command):
        return tuple(line for path in reached for line in lines_of(path, texts[path]))
    every = (line for path in texts if path.endswith(".py") for line in lines_of(path, texts[path]))
    return tuple(replace(line, line=0) for line in every)


def _reached(texts: Mapping[str, str], command: str) -> list[str]:
    """The scripts that the command names, also through shell scripts, then the snapshot's files that they import,
    nearest first."""
    shells = _named(texts, command, ".sh")
    scripts = [one for text in (command, *(texts[path] for path in shells)) for one in _named(texts, text, ".py")]
    found = list(dict.fromkeys(scripts))
    tops = list(dict.fromkeys(PurePosixPath(path).parent for path in found))  # where Python looks for modules
    for path in found:  # grows during the iteration
        found += [one for one in _imported(path, texts, tops) if one not in found]
    return found


def _named(texts: Mapping[str, str], command: str, suffix: str) -> list[str]:
    """Files that a command line names, as seen from any folder of the snapshot: it may change to one first."""
    words = [word.strip("'\";)&") for word in command.split()]
    modules = [f"{word.replace('.', '/')}{suffix}" for flag, word in pairwise(words) if flag == "-m"]
    found = []
    for word in (*words, *modules):
        name = word.removeprefix("./")
        inside = [path for path in texts if path.endswith(f"/{name}")] if name.endswith(suffix) else []
        found += [name] if name in texts and name.endswith(suffix) else inside[:1] if len(inside) == 1 else []
    return list(dict.fromkeys(found))


def _imported(path: str, texts: Mapping[str, str], roots: Sequence[PurePosixPath]) -> list[str]:
    try:
        tree = ast.parse(texts[path])
    except (SyntaxError, ValueError, RecursionError):
        return []
    folder = PurePosixPath(path).parent
    outside = list(dict.fromkeys((folder, *roots, PurePosixPath())))
    names: list[tuple[PurePosixPath, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(top, one.name) for one in node.names for top in outside]
        elif isinstance(node, ast.ImportFrom):
            above = [folder, *folder.parents]
            tops = [above[min(node.level - 1, len(above) - 1)]] if node.level else outside
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


Lines = tuple[str, ...]


def save(folder: str, torch: bool) -> Lines:
    """To a temporary file first, so that no reader finds an incomplete file."""
    if torch:
        return (
            'state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}',
            f'torch.save(state, "{folder}/last.pt.part")',
            f'os.replace("{folder}/last.pt.part", "{folder}/last.pt")',
        )
    return (
        'state = {"step": step, "weights": weights}',
        f'Path("{folder}/state.json.part").write_text(json.dumps(state))',
        f'os.replace("{folder}/state.json.part", "{folder}/state.json")',
    )


def load(folder: str, torch: bool) -> Lines:
    if torch:
        return (
            f'if os.path.exists("{folder}/last.pt"):',
            f'    saved = torch.load("{folder}/last.pt", weights_only=True)',
            '    model.load_state_dict(saved["model"])',
            '    optimizer.load_state_dict(saved["optimizer"])',
            '    first_step = saved["step"] + 1',
        )
    return (
        f'if os.path.exists("{folder}/state.json"):',
        f'    saved = json.loads(Path("{folder}/state.json").read_text())',
        '    weights, first_step = saved["weights"], saved["step"] + 1',
    )


def everything(torch: bool) -> Lines:
    """The library that saves all state; for PyTorch loops."""
    if not torch:
        return ()
    return (
        "from stoker.checkpoint import Checkpoint",
        'state = Checkpoint(model=model, optimizer=optimizer, every="auto")',
    )


def callback(has: Collection[Trait]) -> Lines:
    """For frameworks: our callback, which saves all state; empty for other scripts."""
    if Trait.KERAS in has:
        return (
            "from stoker.checkpoint.keras import StokerCallback",
            "model.fit(…, callbacks=[StokerCallback()])",
        )
    if Trait.LIGHTNING in has:
        return (
            "from stoker.checkpoint.lightning import StokerCallback",
            "Trainer(…, callbacks=[StokerCallback()])",
        )
    if Trait.HUGGING_FACE in has:
        return (
            "from stoker.checkpoint.huggingface import StokerCallback",
            "StokerCallback(trainer)   # before trainer.train()",
        )
    return ()


def hook() -> Lines:
    return ("exact: true   # in stoker.yaml: saves random states and loader positions with each file",)


def atomic(folder: str, torch: bool) -> Lines:
    name = "last.pt" if torch else "state.json"
    write = "torch.save(state, part)" if torch else "Path(part).write_text(json.dumps(state))"
    return (
        f'part = "{folder}/{name}.part"',
        write,
        f'os.replace(part, "{folder}/{name}")  # atomic',
    )


def random_state(torch: bool, numpy: bool) -> Lines:
    lines = ['state["random"] = random.getstate()                 # when saving']
    if numpy:
        arrays = "            # torch.load then requires weights_only=False" if torch else ""
        lines.append(f'state["numpy"] = np.random.get_state(){arrays}')
    if torch:
        lines.append('state["torch"] = torch.get_rng_state()              # torch.cuda.get_rng_state_all() on GPUs')
    lines += [
        'version, numbers, gauss = saved["random"]           # after loading',
        "random.setstate((version, tuple(numbers), gauss))   # JSON makes lists of tuples",
    ]
    if numpy:
        lines.append('np.random.set_state(saved["numpy"])')
    if torch:
        lines.append('torch.set_rng_state(saved["torch"])')
    return tuple(lines)


def data_order(torch: bool) -> Lines:
    if torch:
        return (
            "generator = torch.Generator().manual_seed(seed + epoch)       # the order depends only on the epoch",
            "order = torch.randperm(len(dataset), generator=generator).tolist()[batches_done * batch_size :]",
            "loader = DataLoader(dataset, batch_size, sampler=order)       # continues after the batches done",
        )
    return (
        "order = list(range(len(data)))",
        "random.Random(seed + epoch).shuffle(order)   # the order depends only on the epoch",
        "for index in order[position:]: ...           # save `epoch` and `position`, and continue there",
    )


def optimizer_state(torch: bool) -> Lines:
    if torch:
        return (
            'state["optimizer"] = optimizer.state_dict()         # when saving',
            'optimizer.load_state_dict(saved["optimizer"])       # after loading',
        )
    return (
        'state["velocity"] = velocity     # when saving',
        'velocity = saved["velocity"]     # after loading',
    )


def schedule_state() -> Lines:
    return (
        'state["scheduler"] = scheduler.state_dict()         # when saving',
        'scheduler.load_state_dict(saved["scheduler"])       # after loading',
    )


def weights(torch: bool) -> Lines:
    return ('model.load_state_dict(saved["model"])',) if torch else ('weights = saved["weights"]',)


def memory() -> Lines:
    return (
        'state["history"] = history       # when saving: everything that is written at the end',
        'history = saved["history"]       # after loading',
    )


def outputs_kept(folder: str, outputs: str) -> Lines:
    return (f"checkpoints: [{folder}, {outputs}]   # in stoker.yaml: `{outputs}` is restored, too",)


def determinism(torch: bool, numpy: bool) -> Lines:
    lines = ["random.seed(0)"]
    if numpy:
        lines.append("np.random.seed(0)")
    if torch:
        lines += ["torch.manual_seed(0)", "torch.use_deterministic_algorithms(True)"]
    return (*lines, "for name in sorted(names): ...   # sets and folder listings have no fixed order")
