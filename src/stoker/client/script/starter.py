"""A first job file for a folder, from its files: they are parsed, never run."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.client.script.flags import ScriptFlag, told_to_train
from stoker.client.script.opened import opens_beside
from stoker.client.script.resumeflag import resume_arguments
from stoker.client.script.script import Script, look
from stoker.client.script.shown import completed, gives_places, sets_up, shown, started_in, told_by, wrapper, wrapper_of
from stoker.client.script.suggestions import SuggestedPlaces, advice, bringing_inside, candidates, from_root, places
from stoker.errors import BadInput
from stoker.model.job.commandline import NOTEBOOK, ShellCommand

_OUTPUT_FLAG = re.compile(
    r"(output|outputs|out|save|result|results|model|artifacts?|work|working|exp|experiments?|run)s?[_-]?"
    r"(dir|folder|root|directory)|(save|output)[_-](models?|results?)[_-](dir|folder|root|directory)|outputs?|out|outf|output[_-]path|work[_-]?space"
)
_OUTPUT_FILE_FLAG = re.compile(r"(output|out|save|model_save|save_model)[_-](file|path)")
_FILE = re.compile(r"[^/]\.[A-Za-z]\w*$")
_SUFFIXES = {"torch": ".pt", "tensorflow": ".keras", "keras": ".keras", "joblib": ".joblib", "numpy": ".npz"}
_CHECKPOINT_FLAG = re.compile(
    r"((save|output)[_-])?(checkpoint|ckpt)s?[_-]((models?|save)[_-])?(dir|folder|root|directory)|checkpoints|ckpts"
)
_DATA_FLAG = re.compile(r"(\w+[_-])?(data|dataset|input|inputs|images|corpus|train)([_-]?(dir|path|folder|root|file))?")
_DATA_PLACES = ("data", "dataset", "datasets", "input", "inputs", "images")
_OF_ATTEMPT = "${outputs}/$STOKER_ATTEMPT"  # for a script that never starts in a folder that exists
_COLUMN = 40
_REQUIRES = "# the script also requires: "


@dataclass(frozen=True, slots=True)
class Proposal:
    """The text of a job file, and the script it is for."""

    text: str
    script: str = ""  # empty: none was found
    others: tuple[str, ...] = ()  # other candidates
    advice: tuple[str, ...] = ()  # problems that the file cannot fix


def starter(folder: Path, named: Path | None = None) -> str:
    """The text of a commented `stoker.yaml` for the folder, and for its script if that is named. The same folder always
    gives the same text."""
    return propose(folder, named).text


def propose(folder: Path, named: Path | None = None) -> Proposal:
    found = candidates(folder) if named is None else None
    script = found.best if found else _named(folder, named or Path())
    start = wrapper(folder) if found and (script is None or "/" in script.path) else None
    missing = _missing(script, folder) if found and script else set()
    if start and script and not missing and sets_up(folder, start):
        start = None
    if script and missing and not start:
        start = wrapper_of(folder, script, missing)
    if named is not None and named.suffix in (".sh", ".bash"):
        start = named.as_posix()
    if script is None and start is None and (line := shown(folder, None)):
        return _of_module(folder, *line)
    if script is None and start is None:
        lines = [_HEAD, _name(folder), _row("run: python train.py", _NO_SCRIPT), "", *_rest(Script("")), ""]
        return Proposal("\n".join(lines))
    inner = started_in(folder, start, script.path if script else "") if start else None
    script = (inner.script if inner else script) or Script(start or "")
    script.follow(folder)
    if not start and opens_beside(script, folder):
        script.run_in(PurePosixPath(script.path).parent.as_posix(), folder)
    draft = _draft(folder, script, inner.words if inner else (), f"bash {shlex.quote(start)}" if start else "")
    others = [one for one in found.others if folder / one not in script.modules] if found else []
    told = advice(script, draft.given, saves=draft.places.saves, resume=draft.resume)
    told = [*(f"{one.removeprefix('# ')}: complete `run`" for one in draft.about[:1] if _REQUIRES in one), *told]
    return Proposal("\n".join(_lines(folder, script, draft)), start or script.path, tuple(others), tuple(told))


def _of_module(folder: Path, line: str, command: ShellCommand) -> Proposal:
    """For a command of a README that starts an installed program: its files are where the command says."""
    told = [two.rstrip("/") for one, two in pairwise(command.words) if _OUTPUT_FLAG.fullmatch(one.lstrip("-"))]
    outputs = next((one for one in told if re.fullmatch(r"\w[\w./-]*", one)), "outputs")
    kept = _kept(SuggestedPlaces(outputs, (outputs,), resumes=False, saves=bool(told)))
    rows = [_HEAD, _name(folder), f"run: {_scalar(line)}", *kept, *_environment(folder), *_rest(Script("")), ""]
    what = f"`{command.module}`, which is not in this folder: how it resumes is not known"
    return Proposal("\n".join(rows), command.module, advice=(f"the command is from the README. It starts {what}",))


def bring(text: str, entries: Mapping[str, str]) -> str:
    """The job file with these inputs added: entries under `data`, with the reason for each."""
    rows = [_row(f"  {entry}", reason) for entry, reason in entries.items()]
    lines = text.split("\n")
    if "data:" in lines:
        at = lines.index("data:") + 1
    else:
        at = next((number for number, line in enumerate(lines) if line.startswith("outputs:")), len(lines))
        rows = ["data:", *rows]
    return "\n".join([*lines[:at], *rows, *lines[at:]])


_HEAD = "# What to run, and what it needs. Start it with `stoker run`; preview it with `stoker plan`."
_NO_SCRIPT = "no script was found here: enter your command"


def _missing(script: Script, folder: Path) -> set[str]:
    """The options that it requires and nothing here could give it."""
    known = set(_command(script, _data(script, folder)).split())
    return {flag.name for flag in script.flags if flag.required and not flag.positional} - known


class _Draft(NamedTuple):
    command: str
    data: dict[str, tuple[str, str]]
    places: SuggestedPlaces
    resume: str
    about: list[str]  # comments on other arguments of the script
    given: dict[str, str]  # what flags stand for


def _draft(folder: Path, script: Script, words: tuple[str, ...], wrapped: str) -> _Draft:
    data = {} if wrapped else _data(script, folder)
    command = wrapped or completed(
        folder, script, _brought_inside(_command(script, data), script), _lacking(script, data)
    )
    script.configure(folder, words or tuple(command.split()))
    given = told_by(script, words) if wrapped else _given(script, command)
    script.folder_variables += bringing_inside(script, given | dict.fromkeys(script.folder_variables, "outputs"))
    given |= dict.fromkeys(script.folder_variables, "outputs")
    given |= {f"argv[{number}]": word for number, word in enumerate(_behind(script, command.split()), start=1)}
    resume = "" if wrapped else resume_arguments(script, given, resumes=places(script, given, command).resumes)
    about = [] if wrapped else _about_flags(script, f"{command} {resume}")
    found = from_root(places(script, given, command, told_to_resume=bool(resume)), script, command)
    if found.once and "${checkpoint." in resume and "${outputs}" in command:
        command = command.replace("${outputs}", _OF_ATTEMPT)
        found = found._replace(creates=False)
    return _Draft(command, data, found, resume, about, given)


def _lines(folder: Path, script: Script, draft: _Draft) -> list[str]:
    lines = [_HEAD, _name(folder), f"run: {_scalar(draft.command)}", *draft.about]
    if draft.data:
        lines += ["data:", *(f"  {key}: {_scalar(path)}" for key, (_, path) in draft.data.items())]
    if script.folder_variables:
        values = ", ".join(f"{name}: outputs" for name in script.folder_variables)
        lines.append(_row(f"env: {{{values}}}", "where the script writes, which it reads from its environment"))
    lines += _kept(draft.places)
    if draft.resume:
        lines.append(
            _row(f"resume: {_scalar(draft.resume)}", "added to the command when there is a checkpoint to resume from")
        )
    return [*lines, *_environment(folder), *_rest(script), ""]


def _brought_inside(command: str, script: Script) -> str:
    """Flags whose default is an absolute path that the script saves to get a path that is kept."""
    saved = script.saving(_given(script, command)).outside
    for flag in script.flags:
        if flag.name in command.split() or flag.positional or not (flag.default or "").startswith(("/", "~")):
            continue
        path = PurePosixPath(flag.default or "")
        if any(PurePosixPath(one).is_relative_to(path) for one in saved):
            command += f" {flag.name} ${{checkpoints}}" + (f"/{shlex.quote(path.name)}" if path.suffix else "")
    return command


def _named(folder: Path, path: Path) -> Script | None:
    """The script at a path relative to the folder; None for a shell script."""
    if not (folder / path).is_file():
        raise BadInput(f"file `{path}` not found")
    inside = Path(os.path.relpath(folder / path, folder))
    if ".." in inside.parts:
        hint = "change to the folder of your code: a run gets that folder"
        raise BadInput(f"`{path}` is not in this folder", hint=hint)
    if path.suffix in (".sh", ".bash"):
        return None
    script = look(folder / path, inside.as_posix())
    if script is None:
        hint = "run `stoker init` without a script, and set `run` in the file to any command"
        raise BadInput(f"`{path}` cannot be read as {'a notebook of ' * (path.suffix == NOTEBOOK)}Python", hint=hint)
    return script


def _name(folder: Path) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-")[:40].strip("-")
    return f"name: {_scalar(words or 'training')}"


def _command(script: Script, data: dict[str, tuple[str, str]]) -> str:
    words = _start(script)
    words += [shlex.quote(script.subcommand.name)] if script.subcommand else []
    for flag in script.flags:
        bare = flag.bare
        if word := told_to_train(flag):
            words.append(word)
        if flag.switch or word:
            continue
        if flag.positional:
            words += [f"${{data.{key}}}" for key, (used, _) in data.items() if used == flag.name]
            words += [_in_outputs(flag, script)] if flag.required and _OUTPUT_FLAG.fullmatch(bare.lower()) else []
            continue
        if _OUTPUT_FLAG.fullmatch(bare.lower()):
            words += [flag.name, _in_outputs(flag, script)]
        elif _OUTPUT_FILE_FLAG.fullmatch(bare) and flag.default:
            words += [flag.name, "${outputs}/" + shlex.quote(Path(flag.default).name)]
        elif _CHECKPOINT_FLAG.fullmatch(bare):
            words += [flag.name, "${checkpoints}"]
        words += [word for key, (used, _) in data.items() if used == flag.name for word in (used, f"${{data.{key}}}")]
    return " ".join(words)


def _lacking(script: Script, data: dict[str, tuple[str, str]]) -> int:
    """How many arguments without a name it requires that the command does not have."""
    given = {used for used, _ in data.values()}
    open_ones = (flag for flag in script.flags if flag.positional and not told_to_train(flag))
    needed = [flag for flag in open_ones if flag.required and flag.name not in given]
    return max(script.arguments, len([one for one in needed if not _OUTPUT_FLAG.fullmatch(one.bare.lower())]))


def _in_outputs(flag: ScriptFlag, script: Script) -> str:
    """The folder of outputs, or a file in it if the script uses the flag's value as a file name."""
    if flag.default and _FILE.search(flag.default):
        return "${outputs}/" + shlex.quote(PurePosixPath(flag.default).name)
    tried = (
        "outputs/checkpoint"  # saved to under exactly this name: a library that makes a folder of it is distinguished
    )
    saved = script.saving({flag.dest: tried})
    if flag.default or tried not in (*saved.checkpoints, *saved.models):
        return "${outputs}"
    suffix = next((suffix for library, suffix in _SUFFIXES.items() if library in script.imports), ".pkl")
    return "${outputs}/model" + suffix


def _start(script: Script) -> list[str]:
    """A module of a package is started with `-m`, so that its imports work."""
    if script.path.endswith(NOTEBOOK):
        return [shlex.quote(script.path)]
    parts = PurePosixPath(script.path).with_suffix("").parts
    if parts[-1] == "__main__" and len(parts) > 1:
        parts = parts[:-1]
        return [
            *(["cd", "src", "&&"] if parts[0] == "src" else []),
            "python",
            "-m",
            ".".join(parts).removeprefix("src."),
        ]
    code = parts[1:] if parts[0] == "src" else parts
    imported = script.inside or code[0] in script.imports or (script.from_root and not script.runs_in)
    if len(code) > 1 and imported and all(part.isidentifier() for part in code):
        return [*(["cd", "src", "&&"] if code != parts else []), "python", "-m", ".".join(code)]
    if script.runs_in:
        return ["cd", shlex.quote(script.runs_in), "&&", "python", shlex.quote(PurePosixPath(script.path).name)]
    return ["python", shlex.quote(script.path)]


def _given(script: Script, command: str) -> dict[str, str]:
    """The values of flags in the script, given the command."""
    words = command.split()
    values = {one: two for one, two in pairwise(words) if one.startswith("-")}
    values |= _positional(script, words)
    return {
        flag.dest: re.sub(r"\$\{(outputs|checkpoints)\}", r"\1", values[flag.name])
        for flag in script.flags
        if any(place in values.get(flag.name, "") for place in ("${outputs}", "${checkpoints}"))
        or (flag.positional and flag.name in values and "$" not in values[flag.name])
    }


def _positional(script: Script, words: list[str]) -> dict[str, str]:
    """The arguments without a name directly behind the script, if it takes as many."""
    given = _behind(script, words)
    names = [flag.name for flag in script.flags if flag.positional]
    return dict(zip(names, given, strict=True)) if len(names) == len(given) else {}


def _behind(script: Script, words: list[str]) -> list[str]:
    """The words between the script and its first option."""
    begin = len(_start(script)) + bool(script.subcommand)
    return list(takewhile(lambda word: not word.startswith("-"), words[begin:]))


def _data(script: Script, folder: Path) -> dict[str, tuple[str, str]]:
    """Inputs by name: the flag that takes it, and the path as the job file writes it."""
    found: dict[str, tuple[str, str]] = {}
    places = [flag.name for flag in script.flags if flag.positional]
    told = places if places and gives_places(folder, script) else []
    for flag in script.flags:
        if not _DATA_FLAG.fullmatch(flag.bare) or flag.switch or flag.name in told:
            continue
        path = _existing(flag, folder)
        key = re.sub(r"\W", "_", re.sub(r"[_-](dir|path|folder|root|file)$", "", flag.bare))
        if path and key.isidentifier() and path not in {known for _, known in found.values()}:
            found.setdefault(key, (flag.name, path))
    return found


def _existing(flag: ScriptFlag, folder: Path) -> str:
    places = [flag.default] if flag.default else list(_DATA_PLACES)
    for place in places:
        try:
            if place and (folder / place).exists() and (folder / place).resolve() != folder.resolve():
                return place
        except (OSError, ValueError):
            continue
    return ""


def _about_flags(script: Script, command: str) -> list[str]:
    words = command.split()
    given = _positional(script, words)
    told = [flag for flag in script.flags if flag.name in given or (flag.positional and told_to_train(flag) in words)]
    others = [flag for flag in script.flags if flag.name not in words and flag not in told]
    needed = [flag.name for flag in others if flag.required]
    optional = [_told(flag) for flag in others if not flag.required]
    lines = [f"{_REQUIRES}{_line(', '.join(needed))}"] if needed else []
    return lines + ([f"# it also accepts {_line(', '.join(optional[:8]))}"] if optional else [])


def _told(flag: ScriptFlag) -> str:
    return f"{flag.name} {flag.default}" if flag.default and len(flag.default) < 30 and not flag.switch else flag.name


def _line(text: str) -> str:
    """A comment must stay one."""
    return re.sub(r"[^\x20-\x7e]+", " ", text)


def _kept(found: SuggestedPlaces) -> list[str]:
    """Where the script writes by itself; its arguments may name other places."""
    named = [_scalar(one) for one in found.checkpoints]
    kept = named[0] if len(named) == 1 else f"[{', '.join(named)}]"
    both = "downloaded at the end, and also a checkpoint" if found.outputs in found.checkpoints else ""
    return [
        _row(f"outputs: {_scalar(found.outputs)}", both or "downloaded when the run ends"),
        _row(f"checkpoints: {kept}", "saved during the run, and restored before a restart"),
        *(
            [_row("create_folders: false", "the script creates them, and refuses existing ones")]
            if found.creates
            else []
        ),
    ]


def _environment(folder: Path) -> list[str]:
    for name in ENVIRONMENTS:
        if (folder / name).is_file():
            form = f"{{dockerfile: {name}}}" if name == "Dockerfile" else name
            return [_row(f"# environment: {form}", "uses this; the default is the Python you submit with")]
    return []


_LOCKED = ("uv.lock", "pylock.toml", "poetry.lock")
ENVIRONMENTS = (*_LOCKED, "requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml", "Dockerfile")


def _rest(script: Script) -> list[str]:
    lines = [_row("on: local", "a provider or a cluster")]
    if script.needs_ranks:
        why = "the script reads RANK and LOCAL_RANK, which torchrun sets"
        lines += [_row("launcher: torchrun", why), _row("processes: gpus", "one rank per GPU; one without GPUs")]
    elif script.distributed:
        lines += [_row("# processes: gpus", "one rank per GPU"), _row("# launcher: torchrun", "or plain, mpi")]
    if script.secrets:
        names = ", ".join(script.secrets)
        lines.append(_row(f"# secrets: [{names}]", "read from your environment, never stored"))
    return [
        *lines,
        _row("# time_limit: 8h", "the longest an attempt may run"),
        _row("# retries: 2", "retries after a failure of the script"),
        _row("# stop_when: val_acc >= 0.95", "ends the run as succeeded when a metric meets this"),
    ]


def _row(setting: str, comment: str) -> str:
    return f"{setting:<{_COLUMN}}  # {comment}"


def _scalar(text: str) -> str:
    """As a YAML scalar: plain if that is safe, else quoted."""
    plain = re.fullmatch(r"[A-Za-z_./$][\w ./${}=+,@-]*", text) and text == text.strip() and " #" not in text
    flags = re.fullmatch(r"--[\w ./${}=+@-]*", text) and text == text.strip()
    safe = (plain and "," not in text) or flags or (plain and " " in text)
    if safe and text.lower() not in ("null", "true", "false"):
        return text
    return re.sub(r"[^ -~]", _escaped, json.dumps(text, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    """YAML refuses some characters, such as DEL, that JSON takes as they are."""
    return found[0] if found[0].isprintable() else f"\\U{ord(found[0]):08x}"
