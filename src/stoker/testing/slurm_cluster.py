"""A Slurm cluster of this computer: a real controller and nodes, with folders and ports of their own. Root."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "slurmdbd", "mariadbd")
NODES = ("n1", "n2", "n3")
READY_S = 60.0
_CONF = """ClusterName=stoker
SlurmctldHost={host}({address})
SlurmctldPort={controller}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
DefMemPerCPU=200
SlurmctldTimeout=10
MessageTimeout=5
ReturnToService=2
SlurmdTimeout=10
KillWait={kill_wait}
MinJobAge={job_age}
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=1 OverSubscribe=NO GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=1:00:00 PriorityTier=10 PreemptMode=OFF
{accounting}
"""
_ACCOUNTING = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStorageEnforce=associations,limits,qos
"""
_DBD_CONF = """AuthType=auth/none
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
ACCOUNT = "vision"  # the one that jobs may use, where there are accounts


def check() -> None:
    """Raises RuntimeError where a program has to be installed."""
    if missing := [one for one in PROGRAMS if not shutil.which(one)]:
        raise RuntimeError(
            f"Slurm's tests need {', '.join(missing)}; try: apt-get install slurm-wlm slurmdbd mariadb-server-core"
        )


@dataclass
class SlurmCluster:
    folder: Path
    kill_wait: int = 8  # seconds from SIGTERM to SIGKILL
    grace: int = 6  # seconds that a preempted job has
    job_age: int = 300
    nodes: Sequence[str] = NODES
    address: str = "127.0.0.1"  # of this computer, as its login nodes see it
    accounts: bool = False  # with slurmdbd and its database, and so `sacct`
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def variables(self) -> dict[str, str]:
        """What its commands need to find it."""
        return {"SLURM_CONF": str(self.conf)}

    @property
    def _env(self) -> list[str]:
        return ["env", *(f"{name}={value}" for name, value in self.variables.items())]

    def boot(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        ports, host = _free_ports(len(self.nodes) + 3), socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr={self.address} Port={port} CPUs=2 RealMemory=2000"
            for name, port in zip(self.nodes, ports[3:], strict=True)
        )
        accounting = _ACCOUNTING.format(port=ports[1]) if self.accounts else ""
        given = {
            "accounting": accounting,
            "address": self.address,
            "kill_wait": self.kill_wait,
            "grace": self.grace,
            "job_age": self.job_age,
        }
        self.conf.write_text(_CONF.format(host=host, controller=ports[0], folder=self.folder, nodes=nodes, **given))
        if self.accounts:
            self._start_accounts(host, ports[1], ports[2])
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self._await_nodes()

    def _start_accounts(self, host: str, port: int, database: int) -> None:
        """A user of the account ACCOUNT, and nobody else."""
        files = self.folder / "database"
        make = ["mariadb-install-db", "--no-defaults", f"--datadir={files}", "--user=root", "--skip-test-db"]
        subprocess.run([*make, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
        first = self.folder / "first.sql"
        first.write_text("GRANT ALL ON *.* TO slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n")
        options = [f"--datadir={files}", f"--port={database}", f"--socket={self.folder}/d", f"--init-file={first}"]
        small = ["--user=root", "--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=24M"]
        self._start("mariadbd", "mariadbd", "--no-defaults", *options, *small)
        self._await(lambda: _listens(database), "mariadbd")
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_DBD_CONF.format(host=host, port=port, database=database, folder=self.folder))
        conf.chmod(0o600)
        self._start("slurmdbd", "slurmdbd", "-D")
        self._await(lambda: _listens(port), "slurmdbd")
        for words in (("cluster", "stoker"), ("account", ACCOUNT), ("user", "root", f"account={ACCOUNT}")):
            self.command("sacctmgr", "--immediate", "add", *words)

    def _await(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        while not is_there():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not start: {(self.folder / f'{what}.out').read_text()[-2000:]}")
            time.sleep(0.1)

    def start_controller(self, *, clean: bool = True) -> None:
        """`clean`: without the jobs that it had."""
        self._start("slurmctld", "slurmctld", "-D", *(["-c"] if clean else []))

    def stop_controller(self) -> None:
        self._stop("slurmctld")

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Its daemon ends without a word."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def command(self, *words: str) -> str:
        done = subprocess.run([*self._env, *words], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Ids of all that have not ended."""
        return self.command("squeue", "--noheader", "--format=%A").split()

    def close(self) -> None:
        """Ends every job, then every daemon, and whatever they have left."""
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            if self.jobs():
                self.command("scancel", "--signal=KILL", "--full", *self.jobs())
                self.command("scancel", *self.jobs())
        deadline = time.monotonic() + READY_S
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            while self.jobs() and time.monotonic() < deadline:
                time.sleep(0.1)
        for name in reversed(list(self._daemons)):  # the database last
            self._stop(name)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*self._env, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _stop(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _await_nodes(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            with suppress(RuntimeError):
                states = self.command("sinfo", "--noheader", "-N", "--format=%T", "-p", "main").split()
                if states == ["idle"] * len(self.nodes):
                    return
            if time.monotonic() > deadline:
                logs = "\n".join(one.read_text()[-2000:] for one in sorted(self.folder.glob("*.log")))
                raise RuntimeError(f"the cluster did not start:\n{logs}")
            time.sleep(0.1)


@contextmanager
def slurm_cluster(
    folder: Path, nodes: Sequence[str] = NODES, address: str = "127.0.0.1", *, accounts: bool = False
) -> Iterator[SlurmCluster]:
    check()
    cluster = SlurmCluster(folder, nodes=nodes, address=address, accounts=accounts)
    try:
        cluster.boot()
        yield cluster
    finally:
        cluster.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
