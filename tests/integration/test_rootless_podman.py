"""Podman without root: an ordinary account of this computer, and a real agent of it."""

from __future__ import annotations

import os
import pwd
import resource
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agentnode import Node, eventually

from stoker.agent.pack import pack
from stoker.model.run.report import Outcome
from stoker.model.workspace import layout
from stoker.testing.engines import IMAGE, INSTALL, python_image

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="making an account requires root"),
]
KEPT = Path(__file__).parents[2] / ".services" / "image.tar"
PYTHON = "/usr/bin/python3"  # that of the tests may be in a home that others cannot read
TRAIN = """
    import os, resource, sys, time
    shm = os.statvfs("/dev/shm")
    print(os.getuid(), shm.f_blocks * shm.f_bsize, resource.getrlimit(resource.RLIMIT_NOFILE)[1], flush=True)
    open("outputs/model", "w").write("42")
    while len(sys.argv) > 1:
        time.sleep(0.1)
"""


@dataclass
class Account:
    name: str
    home: Path

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.name).pw_uid

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        words = ["setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups", *command]
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.home), "USER": self.name, **variables}
        env["XDG_RUNTIME_DIR"] = str(self.home / "run")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, env=env, cwd=self.home, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def said(self, *command: str) -> str:
        process = self.start(*command)
        out = process.communicate(timeout=120)[0]
        assert not process.returncode, out
        return out


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    missing = [one for one in ("podman", "newuidmap", "runc") if not shutil.which(one)]
    assert not missing, f"the tests need {', '.join(missing)}; try: {INSTALL}"
    made = Account(f"stk{secrets.token_hex(3)}", Path("/"))
    subprocess.run(["useradd", "--create-home", made.name], check=True)
    made.home = Path(pwd.getpwnam(made.name).pw_dir)
    try:
        conf = made.home / ".config" / "containers"
        conf.mkdir(parents=True)
        (made.home / "run").mkdir()
        engine = ['runtime = "runc"', 'cgroup_manager = "cgroupfs"', 'events_logger = "file"']
        (conf / "containers.conf").write_text("\n".join(["[engine]", *engine]))
        (conf / "storage.conf").write_text('[storage]\ndriver = "vfs"\n')
        shutil.copy(python_image(KEPT), made.home / "image.tar")
        subprocess.run(["chown", "-R", made.name, str(made.home)], check=True)
        made.said("podman", "import", str(made.home / "image.tar"), IMAGE)
        yield made
    finally:
        eventually(lambda: _killed(made), "the end of its processes")
        subprocess.run(["userdel", "--remove", made.name], capture_output=True, check=True)


def _killed(account: Account) -> bool:
    """Podman's own helper among them. The last of them may be waited for by a parent that is about to end."""
    return bool(subprocess.run(["pkill", "-KILL", "--uid", account.name]).returncode)


def started(account: Account, node: Node, run: str, attempt: int = 1) -> subprocess.Popen[str]:
    node.order(run, {"train.py": TRAIN}, attempt=attempt, environment={"image": IMAGE}, python=PYTHON)
    subprocess.run(["chown", "-R", account.name, str(node.root)], check=True)
    words = [PYTHON, "-I", "-S", str(node.agent), "run", "--store", node.store.url, "--folder", str(node.folder)]
    words += ["--orders", layout.orders("r1", node.attempt), "--environments", str(node.environments)]
    return account.start(*words, STOKER_NODE_KEY=node.key)


def test_a_script_has_the_users_own_id_and_a_killed_agent_leaves_no_container(account: Account) -> None:
    root = account.home / "node"
    root.mkdir()
    node = Node(root, pack(root / "agents"))
    assert started(account, node, "python3 train.py").wait(120) == 0
    report = node.report()
    assert report.outcome is Outcome.SUCCEEDED, report.message
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    uid, shared, files = map(int, node.log().split())
    assert (uid, files) == (account.uid, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert shared == pytest.approx(memory / 2, rel=0.01)
    assert node.outputs() == {"model": b"42"}
    node.folder = root / "second"
    agent = started(account, node, "python3 train.py waits", attempt=2)
    eventually(lambda: node.log().count(b"\n"), "its first line", 120)
    assert account.said("podman", "ps", "--quiet").split()
    os.kill(agent.pid, signal.SIGKILL)
    eventually(lambda: not node.processes(), "the end of its processes")
    assert account.said("podman", "ps", "--all", "--quiet").split() == []
