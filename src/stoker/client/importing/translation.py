"""A job file in the making: its fields with comments, what the original says that a job file has no field for, and
what starts ranks in a command line (`torchrun`, `mpirun`, `srun`), for which `launcher` and `processes` stand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.client.submit import jobfile
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.cause import Cause
from stoker.model.job.commandline import REFERENCE
from stoker.model.job.fields import Plain, shown
from stoker.model.job.job import Job

_MOST_BYTES = 1_000_000
_COLUMN = 40
_SAFE = re.compile(r"[A-Za-z_./][\w./@+-]*", re.ASCII)
_LINE = re.compile(r"[A-Za-z_./][\w ./${}=+,@-]*", re.ASCII)
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
_SECRET = re.compile(r"(?i)(^|_)(token|secret|password|passwd|[a-z]*key|sas)(_|$)")


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Something in the original that no field of a job file stands for, and what to do instead."""

    line: int
    what: str
    instead: str


@dataclass(slots=True)
class Translation:
    """What a translator fills."""

    file: str
    values: dict[str, Plain] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    unmapped: list[Unmapped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # at the top of the file
    at: int = 1  # the line that is being read
    lines: dict[str, int] = field(default_factory=dict)  # of the original, by field

    def put(self, name: str, value: Plain, comment: str = "") -> None:
        self.values[name] = value
        self.comments[name] = comment
        self.lines[name] = self.at

    def env(self, name: str, value: str, line: int) -> None:
        """A variable of the script; one that looks like a secret is passed by name, and its value is not copied."""
        if _SECRET.search(name):
            self.put("secrets", sorted({*self.values.get("secrets", ()), name}), "read from your environment")
            self.lack(
                line, f"the value of `{name}`", f"it was not copied: run `export {name}=VALUE` before `stoker run`"
            )
        elif name.startswith("STOKER_"):
            self.lack(line, f"`{name}`", "choose a name that does not start with STOKER_")
        else:
            self.values.setdefault("env", {})[name] = value
            self.lines["env"] = line

    def lack(self, line: int, what: str, instead: str) -> None:
        found = Unmapped(line, one_line(what), one_line(instead))
        if found not in self.unmapped:
            self.unmapped.append(found)

    def refuse(self, line: int, what: str, found: Plain, expected: str) -> JobInvalid:
        """To raise: the original itself is wrong, or is nothing that can be translated."""
        text = found if isinstance(found, str) and found.startswith("`") else shown(found)
        return JobInvalid([Problem(what, text, expected, line=line, column=1)], file=self.file)

    def text(self) -> str:
        """The job file. Raises JobInvalid where it would not be one."""
        self.unmapped.sort(key=lambda one: one.line)
        lines = [f"# Written by `stoker import` from {one_line(self.file)}. Preview it with `stoker plan`."]
        lines += [f"# {one_line(note)}" for note in self.notes]
        for one in fields(Job):
            if one.name in self.values:
                lines += _entry(one.name, self.values[one.name], one_line(self.comments.get(one.name, "")))
        if self.unmapped:
            lines += ["", "# Without a counterpart:"]
            lines += [f"#   line {one.line}: {one.what}: {one.instead}" for one in self.unmapped]
        text = "\n".join([*lines, ""])
        try:
            jobfile.read_text(text, Path("stoker.yaml"))
        except JobInvalid as invalid:
            raise JobInvalid([self._in_original(one) for one in invalid.problems], file=self.file) from None
        return text

    def _in_original(self, problem: Problem) -> Problem:
        return replace(problem, line=self.lines.get(re.split(r"[.\[]", problem.field)[0], 1), column=1)


def original(path: Path) -> str:
    """The text of the file that is imported."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"file `{path}` not found", cause=Cause.JOB_FILE_MISSING) from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise BadInput(f"`{path}` cannot be read: {reason}", cause=Cause.JOB_FILE_UNREADABLE) from None
    if len(data) > _MOST_BYTES:
        raise BadInput(f"`{path}` has more than {_MOST_BYTES:,} bytes", cause=Cause.JOB_FILE_UNREADABLE)
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = f"`0x{data[error.start]:02x}`"
        raise JobInvalid([Problem("text", found, "text in UTF-8", line=line, column=1)], file=str(path)) from None


def one_line(text: str) -> str:
    """A comment must stay one."""
    short = re.sub(r"[^ -~]+", " ", text).strip()
    return short if len(short) <= 300 else f"{short[:297]}..."


def experiment(text: str) -> str:
    """As a job's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "training"


def shell_variables(text: str) -> str:
    """With `${name}` of the shell written so that it is not taken for a reference of ours."""

    def written(found: re.Match[str]) -> str:
        follows = text[found.end() : found.end() + 1]
        if re.match(r"[\w\[]", follows) or "." in found[1]:
            return f"${{{found[1]}:-}}"
        return f"${found[1]}"

    return REFERENCE.sub(written, text)


def inside(path: str, folder: str) -> str:
    """The path as seen from the folder; empty where it is not in it."""
    one, other = PurePosixPath(path), PurePosixPath(folder)
    return one.relative_to(other).as_posix() if one.is_relative_to(other) else ""


def _entry(name: str, value: Plain, comment: str) -> list[str]:
    behind = f"  # {comment}" if comment else ""
    if isinstance(value, str) and "\n" in value and _as_block(value):
        return [f"{name}: |-{behind}", *(f"  {line}".rstrip() for line in value.split("\n"))]
    if isinstance(value, Mapping) and value:
        return [f"{name}:{behind}", *(f"  {_flow(key)}: {_flow(one)}" for key, one in value.items())]
    written = value if isinstance(value, str) and _is_plain_line(value) else _flow(value)
    return [f"{f'{name}: {written}':<{_COLUMN}}{behind}" if behind else f"{name}: {written}"]


def _as_block(text: str) -> bool:
    """A block keeps each line as it is, if nothing in it is lost at its ends."""
    lines = text.split("\n")
    fits = all(re.fullmatch(r"[ -~]*", line) and line == line.rstrip() for line in lines)
    return fits and bool(lines[0]) and not lines[0].startswith(" ") and bool(lines[-1])


def _is_plain_line(text: str) -> bool:
    return bool(_LINE.fullmatch(text)) and text == text.strip() and " " in text


def _flow(value: Any) -> str:
    """On one line; numbers keep their spelling."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_flow(one) for one in value) + "]"
    if not isinstance(value, str):
        return json.dumps(value) if isinstance(value, bool) or value is None else _number(value)
    if _SAFE.fullmatch(value) and value.lower() not in _WORDS and not re.fullmatch(r"\.[\d.infaINFA]+.*", value):
        return value
    if re.fullmatch(r"\d{1,9}\.\.\d{1,9}(\.\.\d{1,9})?", value):  # a range
        return value
    return re.sub(r"[^ -~]", _escaped, json.dumps(value, ensure_ascii=False))


def _number(value: Any) -> str:
    return f"{value:.12g}" if type(value) is float else str(value)


def _escaped(found: re.Match[str]) -> str:
    """YAML refuses some characters, such as DEL, that JSON takes as they are."""
    return found[0] if found[0].isprintable() else f"\\U{ord(found[0]):08x}"


_TORCH_FLAGS = {"standalone", "no-python", "run-path", "use-env", "m", "module"}
_MPI_TWO = {"map-by", "bind-to", "rank-by", "hostfile", "host", "H", "machinefile", "N", "npernode", "ppn", "wdir"}
_MPI_TWO |= {"prefix", "report-bindings-to", "rf", "rankfile"}
_SRUN_TWO = {"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "w": "nodelist", "p": "partition", "G": "gpus"}
_SRUN_TWO |= {"o": "output", "e": "error", "J": "job-name", "A": "account", "t": "time", "m": "distribution"}
_SRUN_FLAGS = {"label", "unbuffered", "exclusive", "overlap", "exact", "verbose", "quiet", "no-kill", "multi-prog"}
_SRUN_FLAGS |= {"l", "u", "v", "Q", "K", "kill-on-bad-exit", "k", "pty", "propagate", "container-mount-home"}
_SRUN_FLAGS |= {"container-writable", "no-container-mount-home", "container-remap-root"}


@dataclass(slots=True)
class Launched:
    """A command without its launcher."""

    command: str
    launcher: str = ""  # `torchrun`, `mpi`, `srun` or nothing
    options: dict[str, str] = field(default_factory=dict)  # of the launcher, without dashes; underscores as dashes
    env: dict[str, str] = field(default_factory=dict)


_WORD = re.compile(r"""\s*((?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^)]*\))+)""", re.S)


def words_of(line: str) -> list[tuple[str, int]]:
    """The raw words with where each begins: quotes stay, so that the rest of the line is unchanged."""
    return [(found[1], found.start(1)) for found in _WORD.finditer(line)]


def bare(raw: str) -> str:
    try:
        return "".join(shlex.split(raw)) if raw else ""
    except ValueError:
        return raw


def unwrapped(line: str) -> Launched | None:
    """The command that the launcher at the beginning of the line starts; None where there is no launcher."""
    words = words_of(line)
    names = [PurePosixPath(bare(raw)).name for raw, _ in words[:4]]
    if names and names[0] == "exec":
        return unwrapped(line[words[1][1] :]) if len(words) > 1 else None
    if names[:1] == ["torchrun"]:
        return _torchrun(line, words, 1)
    if len(names) > 2 and names[0].startswith("python") and names[1] == "-m" and names[2].startswith("torch.distrib"):
        return _torchrun(line, words, 3)
    if names[:1] in (["mpirun"], ["mpiexec"]):
        return _options(line, words, "mpi", flags=set(), two=_MPI_TWO | {"np", "n", "c"})
    if names[:1] == ["srun"]:
        return _options(line, words, "srun", flags=_SRUN_FLAGS, two=set(_SRUN_TWO))
    return None


def _torchrun(line: str, words: list[tuple[str, int]], at: int) -> Launched | None:
    options: dict[str, str] = {}
    module = False
    while at < len(words) and words[at][0].startswith("-"):
        name, equals, value = bare(words[at][0]).lstrip("-").partition("=")
        name = name.replace("_", "-")
        module |= name in ("m", "module")
        at += 1
        if not equals and name not in _TORCH_FLAGS and at < len(words):
            value = bare(words[at][0])
            at += 1
        if name not in ("m", "module", "use-env"):
            options[name] = value
    if at >= len(words):
        return None
    start = "" if "no-python" in options else "python -m " if module else "python "
    return Launched(start + line[words[at][1] :], "torchrun", options)


def _options(
    line: str, words: list[tuple[str, int]], launcher: str, *, flags: set[str], two: set[str]
) -> Launched | None:
    found = Launched("", launcher)
    at = 1
    while at < len(words) and words[at][0].startswith("-"):
        word = bare(words[at][0])
        name, equals, value = word.lstrip("-").partition("=")
        at += 1
        if name == "x" and launcher == "mpi" and at < len(words):
            key, _, given = bare(words[at][0]).partition("=")
            found.env[key] = given
            at += 1
            continue
        if name in ("mca", "omca") and launcher == "mpi":
            found.options[name] = " ".join(bare(raw) for raw, _ in words[at : at + 2])
            at += 2
            continue
        short = re.fullmatch(r"-([A-Za-z])(\d.*)", word) if launcher == "srun" else None
        if short:
            name, value = short[1], short[2]
        elif not equals and (name in two or _takes_next(words, at, name, launcher, flags)):
            value = bare(words[at][0]) if at < len(words) else ""
            at += 1
        found.options[_SRUN_TWO.get(name, name) if launcher == "srun" else name] = value
    if at >= len(words):
        return None
    found.command = line[words[at][1] :]
    return found


def _takes_next(words: list[tuple[str, int]], at: int, name: str, launcher: str, flags: set[str]) -> bool:
    """A long option of `srun` that is not known as a flag takes the next word, unless that looks like a command."""
    if launcher != "srun" or len(name) == 1 or name in flags or at + 1 >= len(words):
        return False
    following = PurePosixPath(bare(words[at][0])).name
    return not re.match(r"python|torchrun|bash|sh$|apptainer|singularity|uv$|.*\.(py|sh)$", following)
