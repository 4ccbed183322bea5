"""Pods as real processes: each in namespaces of its own, with its volumes where its containers expect them. Root."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.testing.kubernetes.controllers import INDEX
from stoker.testing.kubernetes.objects import KubeObject, KubeObjects, KubeRefused, is_over, stamp

EVERY_S = 0.02
MOST_MESSAGE = 2048
# A root of its own, made of the folders of this computer. `exec` at the end, so that the command is the first process.
_ROOT = """set -e
mount --make-rprivate /
cd "$1"
for one in /*; do
  if [ -L "$one" ]; then cp -P "$one" ".$one"
  elif [ -d "$one" ]; then mkdir -p ".$one"; mount --rbind "$one" ".$one"; fi
done
mount -t proc proc ./proc
"""


class PodProcesses:
    """A kubelet for all nodes. `images` are those that registries have, each with the PATH inside."""

    def __init__(
        self, objects: KubeObjects, folder: Path, images: Mapping[str, str], claims: Mapping[str, Path]
    ) -> None:
        self._objects, self._folder, self._images, self._claims = objects, folder, images, claims
        self._threads: dict[str, threading.Thread] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._out_of_memory: set[str] = set()
        self._done = threading.Event()

    def tick(self) -> None:
        for pod in self._objects.select("pods"):
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("nodeName") and not is_over(pod) and uid not in self._threads:
                self._threads[uid] = threading.Thread(target=self._live, args=(pod,), daemon=True)
                self._threads[uid].start()

    def close(self) -> None:
        self._done.set()
        for thread in self._threads.values():
            thread.join()

    def kill(self, pod: KubeObject, *, out_of_memory: bool = False) -> None:
        """All processes of a pod, as its kernel or somebody on its node."""
        uid = pod["metadata"]["uid"]
        if out_of_memory:
            self._out_of_memory.add(uid)
        if uid in self._running:
            _signal(self._running[uid], signal.SIGKILL)

    def log(self, pod: KubeObject) -> str:
        """Of its containers, one behind the other."""
        logs = sorted((self._folder / pod["metadata"]["uid"]).glob("*.log"))
        return "".join(one.read_text(errors="replace") for one in logs)

    def _live(self, pod: KubeObject) -> None:
        """Until all containers have ended, or one has failed."""
        folder = self._folder / pod["metadata"]["uid"]
        parts = ("initContainers", "containers")
        steps = [(part, container) for part in parts for container in pod["spec"].get(part) or ()]
        code = next((code for part, one in steps if (code := self._contain(pod, one, folder, part))), 0)
        self._tell(pod, phase="Failed" if code else "Succeeded")
        for one in folder.iterdir() if folder.exists() else ():
            if one.is_dir():
                shutil.rmtree(one, ignore_errors=True)

    def _contain(self, pod: KubeObject, container: KubeObject, folder: Path, part: str) -> int:
        statuses = "initContainerStatuses" if part == "initContainers" else "containerStatuses"
        while waiting := self._lacks(pod, container):
            if self._is_deleted(pod) or self._done.is_set():
                return 137
            self._tell(pod, statuses, container["name"], {"waiting": waiting})
            time.sleep(EVERY_S)
        log = folder / f"{container['name']}.log"
        process = self._started(pod, container, folder, log)
        self._running[pod["metadata"]["uid"]] = process
        phase = "Running" if part == "containers" else "Pending"
        self._tell(pod, statuses, container["name"], {"running": {"startedAt": stamp()}}, phase)
        code = self._wait(pod, process)
        over: dict[str, Any] = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": stamp()}
        if pod["metadata"]["uid"] in self._out_of_memory:
            over["reason"] = "OOMKilled"
        if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            over["message"] = log.read_text(errors="replace")[-MOST_MESSAGE:]
        self._tell(pod, statuses, container["name"], {"terminated": over})
        return code

    def _lacks(self, pod: KubeObject, container: KubeObject) -> dict[str, str] | None:
        """Why a container cannot start."""
        if container["image"] not in self._images:
            words = f'Back-off pulling image "{container["image"]}": not found'
            return {"reason": "ImagePullBackOff", "message": words}
        for volume in pod["spec"].get("volumes") or ():
            if "secret" in volume:
                try:
                    self._objects.get("secrets", pod["metadata"]["namespace"], volume["secret"]["secretName"])
                except KubeRefused:
                    return {"reason": "ContainerCreating", "message": ""}
        return None

    def _started(self, pod: KubeObject, container: KubeObject, folder: Path, log: Path) -> subprocess.Popen[bytes]:
        root = folder / f"root-{container['name']}"
        root.mkdir(parents=True)
        mounts = [(self._volume(pod, one["name"], folder), one["mountPath"]) for one in container["volumeMounts"]]
        lines = [
            f"mkdir -p .{shlex.quote(to)}; mount --bind {shlex.quote(str(at))} .{shlex.quote(to)}" for at, to in mounts
        ]
        script = (
            _ROOT + "\n".join(lines) + '\npath=$2; shift 2; exec /usr/sbin/chroot . /usr/bin/env PATH="$path" "$@"\n'
        )
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "HOSTNAME": pod["spec"]["hostname"]}
        environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        environ["JOB_COMPLETION_INDEX"] = pod["metadata"]["annotations"][INDEX]
        environ |= {one["name"]: one["value"] for one in container.get("env") or ()}
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", str(root)]
        inside = [self._images[container["image"]], *container["command"]]
        with log.open("ab") as file:
            return subprocess.Popen(
                [*words, *inside],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _volume(self, pod: KubeObject, name: str, folder: Path) -> Path:
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == name)
        if "persistentVolumeClaim" in volume:
            return self._claims[volume["persistentVolumeClaim"]["claimName"]]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            found = self._objects.get("secrets", pod["metadata"]["namespace"], volume["secret"]["secretName"])
            for file, data in found["data"].items():
                (place / file).write_bytes(base64.b64decode(data))
        return place

    def _wait(self, pod: KubeObject, process: subprocess.Popen[bytes]) -> int:
        """The exit code. A pod that is deleted gets SIGTERM, and SIGKILL when its time is over."""
        told = False
        while process.poll() is None:
            if (until := self._is_deleted(pod)) and not told:
                told = True
                _signal(process, signal.SIGTERM)
            if self._done.is_set() or (until and datetime.now(UTC) >= until):
                _signal(process, signal.SIGKILL)
            time.sleep(EVERY_S)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _is_deleted(self, pod: KubeObject) -> datetime | None:
        """When it has to be gone."""
        try:
            about = self._objects.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])["metadata"]
        except KubeRefused:
            return datetime.now(UTC)
        at = about.get("deletionTimestamp")
        return datetime.fromisoformat(at) if at else None

    def _tell(
        self,
        pod: KubeObject,
        statuses: str = "",
        name: str = "",
        state: Mapping[str, Any] | None = None,
        phase: str = "",
    ) -> None:
        def change(one: KubeObject) -> None:
            if state is not None:
                others = [each for each in one["status"].get(statuses) or () if each["name"] != name]
                one["status"][statuses] = [*others, {"name": name, "state": dict(state)}]
            if phase:
                one["status"]["phase"] = phase

        self._objects.change("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], change)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To the first process inside: `unshare` is outside. Without one, there is nothing inside yet."""
    with suppress(OSError, ValueError, IndexError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]) if children else process.pid, number)
