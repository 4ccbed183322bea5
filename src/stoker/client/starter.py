"""A first job file for a folder, from what its files say: they are parsed, never run."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from stoker.client.script import Flag, Script, find, look
from stoker.errors import BadInput

_PLACES = ("outputs", "output", "results", "result", "out", "models", "saved_models", "artifacts", "runs", "logs")
_OUTPUT_FLAG = re.compile(
    r"(output|outputs|out|save|result|results|model|artifacts)[_-](dir|folder|root|directory)|outputs?|out|outdir"
)
_OUTPUT_FILE_FLAG = re.compile(r"(output|out|save|model_save|save_model)[_-](file|path)")
_CHECKPOINT_FLAG = re.compile(r"(checkpoint|ckpt)s?[_-](dir|folder|root|directory)|checkpoints|ckpts")
_DATA_FLAG = re.compile(r"(\w+[_-])?(data|dataset|input|inputs|images|corpus|train)([_-](dir|path|folder|root|file))?")
_DATA_PLACES = ("data", "dataset", "datasets", "input", "inputs", "images")
_COLUMN = 40


def starter(folder: Path, named: Path | None = None) -> str:
    """The text of a commented `stoker.yaml` that fits the folder, and its script if that is named. The same folder
    always gives the same text."""
    script = find(folder) if named is None else _named(folder, named)
    name = _name(folder.absolute().name)
    if script is None:
        return "\n".join([_HEAD, f"name: {name}", _row("run: python train.py", _NO_SCRIPT), "", *_rest(Script("")), ""])
    data = _data(script, folder)
    lines = [_HEAD, f"name: {name}", f"run: {_scalar(_command(script, data))}", *_about_flags(script, data)]
    if data:
        lines += ["data:", *(f"  {key}: {_scalar(path)}" for key, (_, path) in data.items())]
    lines += [*_folders(script, _command(script, data)), *_environment(folder), *_rest(script), ""]
    return "\n".join(lines)


_HEAD = "# What to run, and what it needs. Start it with `stoker run`; `stoker plan` shows what that would do."
_NO_SCRIPT = "no script was found here: write your command"


def _named(folder: Path, path: Path) -> Script:
    """The script at a path that is meant from the folder."""
    if not (folder / path).is_file():
        raise BadInput(f"there is no file `{path}` here")
    inside = Path(os.path.relpath(folder / path, folder))
    if ".." in inside.parts:
        hint = "go to the folder that your code is in: that is what a run gets"
        raise BadInput(f"`{path}` is not in this folder", hint=hint)
    script = look(folder / path, inside.as_posix())
    if script is None:
        hint = "without a script, `stoker init` writes a file whose `run` you can make any command"
        raise BadInput(f"`{path}` cannot be read as Python", hint=hint)
    return script


def _name(folder: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:40].strip("-")
    return _scalar(words or "training")


def _command(script: Script, data: dict[str, tuple[str, str]]) -> str:
    words = ["python", shlex.quote(script.path)]
    for flag in script.flags:
        bare = flag.name.lstrip("-")
        if _OUTPUT_FLAG.fullmatch(bare):
            words += [flag.name, "${outputs}"]
        elif _OUTPUT_FILE_FLAG.fullmatch(bare) and flag.default:
            words += [flag.name, "${outputs}/" + shlex.quote(Path(flag.default).name)]
        elif _CHECKPOINT_FLAG.fullmatch(bare):
            words += [flag.name, "${checkpoints}"]
        words += [word for key, (used, _) in data.items() if used == flag.name for word in (used, f"${{data.{key}}}")]
    return " ".join(words)


def _data(script: Script, folder: Path) -> dict[str, tuple[str, str]]:
    """Inputs by name: the flag that takes it, and the path as the job file writes it."""
    found: dict[str, tuple[str, str]] = {}
    for flag in script.flags:
        if not _DATA_FLAG.fullmatch(flag.name.lstrip("-")):
            continue
        path = _existing(flag, folder)
        key = re.sub(r"\W", "_", re.sub(r"[_-](dir|path|folder|root|file)$", "", flag.name.lstrip("-")))
        if path and key.isidentifier() and path not in {known for _, known in found.values()}:
            found.setdefault(key, (flag.name, path))
    return found


def _existing(flag: Flag, folder: Path) -> str:
    places = [flag.default] if flag.default else list(_DATA_PLACES)
    for place in places:
        try:
            if place and (folder / place).exists() and (folder / place).resolve() != folder.resolve():
                return place
        except (OSError, ValueError):
            continue
    return ""


def _about_flags(script: Script, data: dict[str, tuple[str, str]]) -> list[str]:
    command = _command(script, data).split()
    others = [flag for flag in script.flags if flag.name not in command]
    needed = [flag.name for flag in others if flag.required]
    optional = [_told(flag) for flag in others if not flag.required]
    lines = [f"# the script needs as well: {_line(', '.join(needed))}"] if needed else []
    return lines + ([f"# it also takes {_line(', '.join(optional[:8]))}"] if optional else [])


def _told(flag: Flag) -> str:
    return f"{flag.name} {flag.default}" if flag.default and len(flag.default) < 30 else flag.name


def _line(text: str) -> str:
    """A comment must stay one."""
    return re.sub(r"[^\x20-\x7e]+", " ", text)


def _folders(script: Script, command: str) -> list[str]:
    """Where the script writes by itself; what it is told on its command line can be anywhere."""
    saved = [place for place in script.writes if re.search(r"(?i)ckpt|checkpoint", place)]
    made = [place for place in script.writes if place not in saved]
    outputs = next((place for place in _PLACES if place in made), made[0] if made else "outputs")
    outputs = "outputs" if "${outputs}" in command else outputs
    checkpoints = saved[0] if saved and "${checkpoints}" not in command else "checkpoints"
    lines = [
        _row(f"outputs: {_scalar(outputs)}", "brought back by itself when the run ends"),
        _row(f"checkpoints: {_scalar(checkpoints)}", "kept safe, and put back before a restart"),
    ]
    if script.loose and not made and "${outputs}" not in command:
        files = _line(", ".join(script.loose[:3]))
        lines.insert(1, f"# the script writes {files} beside itself: only what lies in `outputs` is brought back")
    return lines


def _environment(folder: Path) -> list[str]:
    for name in ("requirements.txt", "uv.lock", "pyproject.toml"):
        if (folder / name).is_file():
            return [_row(f"# environment: {name}", "builds this; without it, the Python you submit with is used")]
    return []


def _rest(script: Script) -> list[str]:
    lines = [_row("on: local", "a provider or a cluster")]
    if script.distributed:
        lines += [_row("# processes: gpus", "one rank per GPU"), _row("# launcher: torchrun", "or plain, mpi")]
    if script.secrets:
        names = ", ".join(script.secrets)
        lines.append(_row(f"# secrets: [{names}]", "taken from your environment, stored nowhere"))
    return [
        *lines,
        _row("# time_limit: 8h", "the longest an attempt may run"),
        _row("# retries: 2", "tries after the script's own failures"),
        _row("# stop_when: val_acc >= 0.95", "ends the run well when a metric gets there"),
    ]


def _row(setting: str, comment: str) -> str:
    return f"{setting:<{_COLUMN}}  # {comment}"


def _scalar(text: str) -> str:
    """As YAML writes it: plain where that is safe, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z_./$][\w ./${}=+,@-]*", text) and text == text.strip() and " #" not in text
    return text if plain and text.lower() not in ("null", "true", "false") else json.dumps(text, ensure_ascii=False)
