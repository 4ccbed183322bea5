"""Executes a machine's cloud-init plan: some steps at every boot, others once per instance.

As in the real one, "once" is recorded before the work starts: a machine that loses power during `runcmd` does not run
it again.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.twin.machines.guest.processes import GuestFolders, spawn

Plan = Mapping[str, Any]
LOG = "/var/log/cloud-init-output.log"
RESULT = "/run/cloud-init/result.json"
_ERRORS = "/run/cloud-init/errors"
_INSTANCE = "/var/lib/cloud/instance"


class CloudInit:
    def __init__(self, places: GuestFolders, plan: Plan, environment: Mapping[str, str]) -> None:
        self._places = places
        self._plan = plan
        self._environment = environment

    def early(self) -> None:
        """Before any service starts."""
        self._run_script("bootcmd", self._plan.get("bootcmd", ""))
        if self._first("write_files"):
            self._attempt("user-data.txt", self._keep, base64.b64decode(self._plan.get("raw", "")))
            for file in self._plan.get("files", []):
                self._attempt(f"write_files {file['path']}", self._write, file)
        if self._first("users"):
            for user in self._plan.get("users", []):
                self._attempt(f"users {user['name']}", self._make_user, user)

    def final(self) -> None:
        """Concurrently with services that were enabled at an earlier boot."""
        for script in sorted(self._places.path("/var/lib/cloud/scripts/per-boot").glob("*")):
            self._run(script.name, [str(script)])
        if self._first("scripts_user"):
            for name, script in self._plan.get("scripts", {}).items():
                self._run_script(name, script)
        self._finish()

    def _keep(self, data: bytes) -> None:
        """Custom data stays on the disk, readable by root."""
        place = self._places.path(f"{_INSTANCE}/user-data.txt")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(mode=0o600)
        place.write_bytes(data)

    def _first(self, step: str) -> bool:
        mark = self._places.path(f"{_INSTANCE}/sem/config_{step}")
        mark.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            return True
        return False

    def _attempt(self, step: str, action: Any, argument: Any) -> None:
        """A failing entry does not prevent the others."""
        try:
            action(argument)
        except (OSError, KeyError, ValueError) as error:
            self._note(f"{step}: {error}")

    def _write(self, file: Mapping[str, Any]) -> None:
        path = self._places.path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if file["append"] else "wb") as out:
            out.write(base64.b64decode(file["content"]))
        path.chmod(int(file["mode"], 8))
        if file["owner"] and not self._places.root:
            user, _, group = file["owner"].partition(":")
            shutil.chown(path, user, group or user)

    def _make_user(self, user: Mapping[str, Any]) -> None:
        """A machine without isolation has no users of its own: only the keys are stored."""
        home = "/root" if user["name"] == "root" else f"/home/{user['name']}"
        if not self._places.root and user["name"] != "root":
            words = ["useradd", "-m", "-d", home, "-s", user["shell"], "-p", "*", user["name"]]
            self._run("useradd", words)
            if user["sudo"]:
                self._write({**_SUDOER, "path": f"/etc/sudoers.d/90-{user['name']}", "content": _sudo(user["name"])})
        keys = "".join(f"{key}\n" for key in user["keys"])
        owner = f"{user['name']}:{user['name']}"
        content = base64.b64encode(keys.encode()).decode()
        file = {
            "path": f"{home}/.ssh/authorized_keys",
            "content": content,
            "mode": "0600",
            "owner": owner,
            "append": True,
        }
        self._write(file)
        folder = self._places.path(f"{home}/.ssh")
        folder.chmod(0o700)
        if not self._places.root:
            shutil.chown(folder, *owner.split(":"))

    def _run_script(self, name: str, text: str) -> None:
        if not text:
            return
        path = self._places.path(f"{_INSTANCE}/scripts/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
        self._run(name, [str(path)])

    def _run(self, name: str, words: list[str]) -> None:
        log = self._places.path(LOG)
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        pid = spawn(words, self._environment, output, folder=self._places("/"))
        os.close(output)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            self._note(f"{name}: exit code {code}")

    def _note(self, error: str) -> None:
        """In a file, because the two stages are two processes."""
        notes = self._places.path(_ERRORS)
        notes.parent.mkdir(parents=True, exist_ok=True)
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"{error}\n")

    def _finish(self) -> None:
        result, notes = self._places.path(RESULT), self._places.path(_ERRORS)
        result.parent.mkdir(parents=True, exist_ok=True)
        errors = [*self._plan.get("problems", []), *(notes.read_text().splitlines() if notes.exists() else [])]
        part = Path(f"{result}.part")
        part.write_text(json.dumps({"v1": {"datasource": "DataSourceAzure", "errors": errors}}), encoding="utf-8")
        part.replace(result)
        self._places.path(f"{_INSTANCE}/boot-finished").touch()


_SUDOER = {"mode": "0440", "owner": "", "append": False}


def _sudo(user: str) -> str:
    return base64.b64encode(f"{user} ALL=(ALL) NOPASSWD:ALL\n".encode()).decode()
