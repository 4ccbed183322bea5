"""Asks Slurm's controller by its commands, and says in words why one could not be carried out."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Sequence

from stoker.errors import NotAllowed, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.providers.slurm import commands
from stoker.providers.slurm.commands import Partition, SlurmJob
from stoker.providers.slurm.place import ANSWER_S, SlurmPlace

FRESH_S = 60.0  # partitions change rarely
INSTALL = "Slurm's commands are not installed on this computer"
_AWAY = (
    "unable to contact",
    "socket timed out",
    "connection refused",
    "connect failure",
    "communication",
    "zero bytes were transmitted",
    "try again",
    "resource temporarily unavailable",
    "slurmctld is in standby",
)


def is_installed() -> bool:
    return shutil.which("sbatch") is not None and shutil.which("squeue") is not None


class SlurmController:
    """Called from several threads."""

    def __init__(self, place: SlurmPlace) -> None:
        self._place = place
        self._uid = ""
        self._lock = threading.Lock()
        self._partitions: tuple[float, dict[str, Partition]] | None = None
        self._kill_wait: float | None = None

    @property
    def _user(self) -> str:
        """A number: names come from variables that may say anything."""
        self._uid = self._uid or self.run(["id", "-u"]).strip()
        return self._uid

    def jobs(self) -> list[SlurmJob]:
        return commands.jobs(self.run(commands.squeue(self._user)))

    def named(self, name: str) -> list[SlurmJob]:
        return commands.jobs(self.run(commands.named(self._user, name)))

    def submit(self, words: Sequence[str], script: str) -> str:
        printed = self.run(words, script)
        if not (id := commands.submitted(printed)):
            raise ProviderUnavailable(f"sbatch printed no job id: {printed.strip()[:300]}")
        return id

    def cancel(self, id: str) -> None:
        """What has ended meanwhile is fine."""
        for words in commands.cancel(id):
            self._unless_over(words)

    def cancel_step(self, id: str, name: str) -> None:
        if step := commands.step_named(self.run(commands.steps(id)), name):
            self._unless_over(commands.cancel_step(step))

    def accounted(self, id: str) -> SlurmJob | None:
        """Of a job that is not in the queue: from the accounts, where there are some. None: Slurm has forgotten it, by
        its own word. An empty list alone does not prove it."""
        try:
            if found := commands.jobs(self.run(commands.accounting(id))):
                return found[0]
        except (ProviderFailed, OSError):
            pass  # most small clusters have none
        try:
            said = self.run(commands.show(id))
        except ProviderUnavailable:
            raise
        except ProviderFailed as error:
            if "invalid job" in error.message.lower():
                return None
            raise
        if job := commands.shown(said):
            return job
        raise ProviderUnavailable(f"scontrol printed nothing about job {id}: {said.strip()[:300]}")

    def partitions(self) -> dict[str, Partition]:
        with self._lock:
            if self._partitions is None or time.monotonic() - self._partitions[0] > FRESH_S:
                found = commands.partitions(self.run(commands.PARTITIONS))
                self._partitions = time.monotonic(), {one.name: one for one in found}
            return self._partitions[1]

    def grace_s(self) -> float:
        """From SIGTERM to SIGKILL, at least."""
        with self._lock:
            if self._kill_wait is None:
                self._kill_wait = commands.kill_wait(self.run(["scontrol", "show", "config"]))
            return self._kill_wait

    def run(self, words: Sequence[str], given: str = "") -> str:
        """Raises ProviderUnavailable while the controller is away: nothing is known then, and nothing is lost."""
        try:
            done = self._place.run(words, given)
        except FileNotFoundError:
            raise NotSetUp(INSTALL, hint="run Stoker on a login node of the cluster") from None
        except subprocess.TimeoutExpired:
            raise ProviderUnavailable(f"Slurm's controller did not answer {words[0]} for {ANSWER_S:.0f} s") from None
        if done.returncode:
            raise refusal(words[0], done.stderr or done.stdout)
        return done.stdout

    def _unless_over(self, words: Sequence[str]) -> None:
        try:
            self.run(words)
        except ProviderUnavailable:
            raise
        except ProviderFailed as error:
            if not any(said in error.message.lower() for said in ("invalid job", "already", "completing")):
                raise


def refusal(command: str, said: str) -> ProviderFailed:
    """`said` is what the command printed on stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = "; ".join(line.removeprefix(f"{command}: ").removeprefix("error: ") for line in lines)[:500]
    text = f"{command}: {words}" if words else f"{command} failed without a word"
    low = words.lower()
    if any(one in low for one in ("invalid account", "invalid qos", "access/permission denied", "user's group not")):
        hint = "`sacctmgr show associations user=$USER` lists your accounts: set one with `--setting account=NAME`"
        return NotAllowed(f"Slurm refused the job: {words}", hint=hint)
    if any(one in low for one in _AWAY):
        return ProviderUnavailable(f"Slurm's controller is away: {words}", hint="try it with `scontrol ping`")
    return ProviderFailed(f"Slurm refused: {text}")
