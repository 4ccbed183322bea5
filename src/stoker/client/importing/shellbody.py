"""The commands of a batch script: logical lines, without what a run does by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stoker.client.importing.launching import bare
from stoker.client.importing.translation import Translation

_MODULE = re.compile(
    r"(module|ml)\s+(?!-?-?(list|avail)\b)|(source|\.)\s+\S*(/modules?(\.sh)?|/lmod\S*|/modules/init/\S+)$"
)
_QUIET = re.compile(r"(module|ml)\s+(list|avail)|(nvidia-smi|hostname|date|pwd|env|printenv|whoami|set -x)$")
_CONDA = re.compile(r"(?:conda|mamba|micromamba|source)\s+activate\s+(\S+)$")
_CONDA_SETUP = re.compile(r"(source|\.)\s+\S*conda\S*$|eval\s+.*(conda|mamba|micromamba)\b.*(hook|init).*")
_VENV = re.compile(r"(?:source|\.)\s+(\S+)/bin/activate$")
_PROFILE = re.compile(r"(source|\.)\s+(~|\$HOME|/etc)/\S*(bashrc|profile\S*)$")
_CD = re.compile(r"cd\s+(\S+)$")
_HERE = ("$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}", ".", "$PWD", "$(pwd)")
_EXPORT = re.compile(r"export\s+([A-Za-z_]\w*)=('[^']*'|[^\s$`;&|'\"]*|\"[^$`\"\\]*\")$")
_ASSIGNS = re.compile(r"(?:export\s+|declare\s+|local\s+)?([A-Za-z_]\w*)=")
_MEETING = re.compile(r"scontrol\s+show\s+host|SLURM_(JOB_|STEP_)?NODELIST|hostname\s+(-i\b|--ip-address|-I\b)")
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_MEETS = "Stoker tells the ranks where they meet: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE"


@dataclass(slots=True)
class ShellBody:
    """The commands that stay, with their lines in the script, and the folder that they run in."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    folder: str = ""


def shell_body(text: str, into: Translation) -> ShellBody:
    body = ShellBody()
    gone: set[str] = set()  # variables whose assignment was left out
    for number, line in _logical(text):
        into.at = number
        if _is_left_out(number, line, gone, into) or _environment(number, line, into):
            continue
        if (found := _EXPORT.fullmatch(line)) and not body.lines:
            into.env(found[1], bare(found[2]), number)
        elif not (found := _CD.fullmatch(line)) or not _folder(number, bare(found[1]), body, into):
            body.lines.append((number, line))
    return body


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines that belong together as one: continued ones, here-documents. Comments and empty ones are left out."""
    waiting = iter(enumerate(text.split("\n"), start=1))
    for number, line in waiting:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        whole = line.rstrip()
        while whole.endswith("\\") and not whole.endswith("\\\\"):
            following = next(waiting, None)
            whole = f"{whole[:-1].rstrip()} {following[1].strip()}" if following else whole[:-1].rstrip()
        if (document := _HEREDOC.search(whole)) and "<<<" not in whole:
            for _, more in waiting:
                whole += f"\n{more.rstrip()}"
                if more.strip() == document[1]:
                    break
        yield number, whole if line[:1].isspace() else whole.strip()


def _is_left_out(number: int, line: str, gone: set[str], into: Translation) -> bool:
    """What a run does by itself, or no run can do."""
    assigned = _ASSIGNS.match(line.strip())
    uses_gone = any(re.search(rf"\$\{{?{name}\b", line) for name in gone)
    if assigned and (assigned[1] in _RENDEZVOUS or _MEETING.search(line) or uses_gone):
        gone.add(assigned[1])
        into.lack(number, line, _MEETS)
        return True
    if _MODULE.match(line):
        text = (
            "Python packages bring their own CUDA; else begin `run` with `. /etc/profile.d/modules.sh; module load X`"
        )
        into.lack(number, line, text)
        return True
    if _QUIET.match(line) and _QUIET.fullmatch(line.split("#")[0].strip()):
        into.lack(number, line, "it only prints: `stoker show RUN` says what the node is")
        return True
    return False


def _environment(number: int, line: str, into: Translation) -> bool:
    """Lines that choose the software."""
    if found := _CONDA.fullmatch(line):
        text = (
            "submit with it active (`on: slurm` uses the Python that submits), or `conda env export > environment.yml`"
        )
        into.lack(number, line, f"{text} and `environment: environment.yml`")
    elif _CONDA_SETUP.fullmatch(line) or _PROFILE.fullmatch(line):
        into.lack(number, line, "a run uses the Python that submits, or what `environment` names")
    elif found := _VENV.fullmatch(line):
        folder = bare(found[1])
        if folder.startswith("/") and "$" not in folder:
            into.put("environment", {"python": f"{folder}/bin/python"}, "of the venv that the script activates")
        else:
            text = "submit with it active (`on: slurm` uses the Python that submits), or set `environment.python`"
            into.lack(number, line, text)
    else:
        return False
    return True


def _folder(number: int, folder: str, body: ShellBody, into: Translation) -> bool:
    """A run starts in a copy of the folder of its job file; True: no `cd` is needed."""
    if folder in _HERE:
        return True
    if body.lines or body.folder:
        return False
    if folder.startswith("/") and "$" not in folder:
        body.folder = folder
        return True
    if folder.startswith(("~", "$")):
        into.lack(number, f"cd {folder}", "a run starts in a copy of the job file's folder: put the job file there")
        return True
    return False
