"""The parts of an Azure ML job that name other things: its inputs, outputs and environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from stoker.client.importing.translation import Translation, inside
from stoker.client.submit.yamltree import YamlTree
from stoker.errors import JobInvalid
from stoker.model.job.fields import Plain

_ASSET = re.compile(r"azureml:([A-Za-z0-9][\w.-]*)(?::(\w+)|@(\w+))?")
_MODES = {"ro_mount": "mount", "download": "download"}
_LITERALS = ("number", "integer", "boolean", "string")


class AzureJob:
    """The YAML, with the line of each part, and what has been asked for."""

    def __init__(self, tree: YamlTree, into: Translation, folder: PurePosixPath) -> None:
        self._tree = tree
        self.into = into
        self.folder = folder  # of the original
        self.code = "."  # the folder of the script
        self.root = ""  # the folder to upload, where it is not that of the script
        self.seen: set[str] = set()  # keys of the job and of its trial

    def get(self, path: str) -> Plain:
        parts = path.split(".") if path else []
        self.seen |= {parts[0], ".".join(parts[:2])} if parts else set()
        value = self._tree.data
        if path in self._tree.keys:
            self.into.at = self._tree.keys[path].line
        for part in parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def mapping(self, path: str) -> Mapping[str, Plain]:
        value = self.get(path)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(path, value, "a mapping")
        return value or {}

    def text(self, path: str) -> str:
        value = self.get(path)
        return "" if value is None else self.scalar(path, value)

    def scalar(self, path: str, value: Plain) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float) or "\0" in str(value):
            raise self.wrong(path, value, "text or a number")
        return str(value)

    def whole(self, path: str) -> int:
        """0 where it is missing."""
        value = self.get(path)
        if value is None:
            return 0
        if isinstance(value, bool) or not re.fullmatch(r"[1-9]\d{0,8}", str(value)):
            raise self.wrong(path, value, "a whole number, 1 or more")
        return int(str(value))

    def line(self, path: str) -> int:
        while path and path not in self._tree.keys and path not in self._tree.values:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        found = self._tree.keys.get(path) or self._tree.values.get(path)
        return found.line if found else 1

    def wrong(self, path: str, value: Any, expected: str) -> JobInvalid:
        return self.into.refuse(self.line(path), path, value, expected)

    def lack(self, path: str, instead: str) -> None:
        value = self.get(path)
        shown = f"{path}: {value}" if isinstance(value, str | int | float) else path
        self.into.lack(self.line(path), shown, instead)

    def rest(self, path: str, known: set[str], instead: str) -> None:
        for name, value in self.mapping(path).items():
            if name not in known and value is not None:
                self.lack(f"{path}.{name}", instead)


def inputs(job: AzureJob) -> dict[str, str]:
    """What each stands for in the command; one without a value is left out."""
    found: dict[str, str] = {}
    for name, value in job.mapping("inputs").items():
        key = f"inputs.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise job.wrong(key, name, "a name of letters, digits and `_`")
        if not isinstance(value, Mapping):
            if value is not None:
                found[name] = job.scalar(key, value)
        elif job.text(f"{key}.path"):
            found[name] = f"${{data.{name}}}"
            job.into.values.setdefault("data", {})[name] = _data(job, key, name)
        elif job.text(f"{key}.type") in _LITERALS:
            one = next((at for at in ("value", "default") if value.get(at) is not None), "")
            if one:
                found[name] = job.scalar(f"{key}.{one}", value[one])
            job.rest(key, {"type", "value", "default", "optional", "description"}, "a value is part of `run`")
        else:
            raise job.wrong(key, value, "a value, or a mapping with `path`")
    return found


def _data(job: AzureJob, key: str, name: str) -> dict[str, Plain]:
    path, kind = job.text(f"{key}.path"), job.text(f"{key}.type") or "uri_folder"
    entry: dict[str, Plain]
    if _ASSET.fullmatch(path):
        entry = {"dataset": _kept(path)}
    elif path.startswith(("http://", "https://")):
        entry = {"path": path}
    elif ":" in path:
        entry = {"dataset": name}
        job.lack(f"{key}.path", f"Stoker does not read this place: upload it once with `stoker data put {name} FOLDER`")
    else:
        entry = {"path": path if path.startswith("/") else os.path.normpath(job.folder / path)}
    mode = job.text(f"{key}.mode")
    if mode in _MODES:
        entry["mode"] = _MODES[mode]
    elif mode:
        job.lack(f"{key}.mode", "`mode` is `auto`, `download` or `mount`")
    if kind not in ("uri_folder", "uri_file"):
        job.lack(f"{key}.type", "the script gets the files as they are")
    job.rest(key, {"path", "type", "mode", "optional", "description"}, "nothing in a job file stands for it")
    return entry


def _kept(text: str) -> str:
    """What a workspace keeps, as a job file names it."""
    asset = _ASSET.fullmatch(text)
    return f"azureml:{asset[1]}@{asset[2] or asset[3] or 'latest'}" if asset else text


def outputs(job: AzureJob) -> dict[str, str]:
    """The folder of each. A single one is the run's own."""
    found: dict[str, str] = {}
    names = list(job.mapping("outputs"))
    for name in names:
        key = f"outputs.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise job.wrong(key, name, "a name of letters, digits and `_`")
        found[name] = "${outputs}" if len(names) == 1 else f"${{outputs}}/{name}"
        if job.get(key) is None:
            continue
        kept = "outputs are kept in the run's store and downloaded: `stoker fetch RUN`"
        text = {"path": kept, "name": "`stoker data put NAME outputs` makes a dataset", "version": "likewise"}
        job.rest(key, {"type", "description", *text}, "nothing in a job file stands for it")
        for one, instead in text.items():
            if job.get(f"{key}.{one}") is not None:
                job.lack(f"{key}.{one}", instead)
        if job.text(f"{key}.type") not in ("", "uri_folder"):
            job.lack(f"{key}.type", f"`{found[name]}` is a folder")
    return found


def environment(job: AzureJob, key: str) -> None:
    value = job.get(key)
    into = job.into
    if value is None:
        return
    if not isinstance(value, Mapping):
        text = job.text(key)
        if _ASSET.fullmatch(text) and job.text("compute").removeprefix("azureml:") != "local":
            into.put("environment", _kept(text), "the environment of the workspace")
        elif text.startswith("azureml:") or ":" in text or "@" in text:
            instead = "`az ml environment show` has its image and conda file: name one in `environment`"
            into.lack(job.line(key), f"{key}: {text}", f"{instead}; until then the Python that submits is used")
        else:
            into.lack(job.line(key), f"{key}: {text}", "name the image or the conda file in it in `environment`")
        return
    _described(job, key)
    handled = {"image", "conda_file", "build", "name", "version", "description", "$schema"}
    for name in ("name", "version"):
        if job.get(f"{key}.{name}") is not None:
            job.lack(f"{key}.{name}", "an environment is versioned by its content")
    job.rest(key, handled, "nothing in a job file stands for it")


def _described(job: AzureJob, key: str) -> None:
    into, image, conda = job.into, job.text(f"{key}.image"), job.get(f"{key}.conda_file")
    if isinstance(conda, Mapping):
        job.lack(
            f"{key}.conda_file", "save it as `environment.yml` in `source`, and add `environment: environment.yml`"
        )
    elif conda is not None:
        into.put(
            "environment",
            _in_source(job, f"{key}.conda_file", job.text(f"{key}.conda_file")),
            "builds a venv, or a conda environment",
        )
        if image:
            job.lack(f"{key}.image", "the packages of the conda file are used, and the image is not")
    elif image:
        into.put("environment", {"image": image})
    elif job.get(f"{key}.build") is not None:
        folder = job.text(f"{key}.build.path") or "."
        file = job.text(f"{key}.build.dockerfile_path") or "Dockerfile"
        context = _in_source(job, f"{key}.build", folder)
        dockerfile = os.path.normpath(PurePosixPath(context) / file)
        into.put("environment", {"dockerfile": dockerfile, "context": context})
        job.rest(f"{key}.build", {"path", "dockerfile_path"}, "use `build_args` in `environment`")


def _in_source(job: AzureJob, key: str, path: str) -> str:
    """As seen from the folder to upload, which becomes a larger one where the path is not in that of the script."""
    whole = os.path.normpath(job.folder / path)
    if found := inside(whole, job.code):
        return found
    folders = PurePosixPath(job.code).parts, PurePosixPath(whole).parent.parts
    shared = [one for one, other in zip(*folders, strict=False) if one == other != ".."]
    if ".." in folders[0] + folders[1] or whole.startswith("/"):
        job.lack(key, f"copy `{path}` into `{job.code}`: a run gets one folder")
        return PurePosixPath(whole).name
    job.root = "/".join(shared) or "."
    job.into.put("source", job.root, "the folder to upload: of the script and its environment")
    below = inside(job.code, job.root)
    if below != ".":
        job.into.put("outputs", f"{below}/outputs", "downloaded when the run ends")
        job.into.put("checkpoints", f"{below}/checkpoints", "saved during the run, and restored before a restart")
    return inside(whole, job.root) or path
