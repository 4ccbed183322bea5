"""A job file in the making: its fields with comments, and what the original says that a job file has no field for."""

from __future__ import annotations

import json
import re
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
