"""The agent runs on hosts with Python 3.10: what it uses of newer ones is completed by `agent/older.py`."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent import older
from stoker.agent.pack import pack

# Imported by nodes; what else is packed is for scripts that use the client.
RUNS_ON_NODES = (
    *("stoker/agent/", "stoker/checkpoint/", "stoker/errors.py", "stoker/files/", "stoker/model/"),
    *("stoker/notebooks/", "stoker/providers/", "stoker/stores/", "stoker/__init__.py"),
)
OTHERS = "stoker/stores/trees/landing.py"  # of client and server
COMPLETED = {"datetime.UTC", "enum.StrEnum", "tomllib"}
# Of modules that the agent may use; a star is any method of that name.
NEWER = {
    *COMPLETED,
    *("typing.Self", "typing.LiteralString", "typing.Never", "typing.NotRequired", "typing.Required", "typing.Unpack"),
    *("typing.assert_never", "typing.assert_type", "typing.reveal_type", "typing.override", "typing.TypeVarTuple"),
    *("typing.dataclass_transform", "typing.get_overloads", "typing.TypeAliasType", "typing.ReadOnly", "typing.TypeIs"),
    *("contextlib.chdir", "hashlib.file_digest", "sys.exception", "sys.monitoring", "sys.activate_stack_trampoline"),
    *(
        "enum.verify",
        "enum.member",
        "enum.nonmember",
        "enum.property",
        "enum.global_enum",
        "enum.ReprEnum",
        "enum.EnumCheck",
    ),
    *(
        "itertools.batched",
        "math.cbrt",
        "math.exp2",
        "math.sumprod",
        "math.fma",
        "operator.call",
        "inspect.getmembers_static",
    ),
    *(
        "os.setns",
        "os.unshare",
        "os.process_cpu_count",
        "os.EFD_CLOEXEC",
        "os.listdrives",
        "os.pidfd_open.PIDFD_NONBLOCK",
    ),
    *(
        "os.PIDFD_NONBLOCK",
        "os.login_tty",
        "os.posix_openpt",
        "os.ptsname",
        "os.grantpt",
        "os.unlockpt",
        "os.timerfd_create",
    ),
    *(
        "shutil.rmtree.onexc",
        "subprocess.Popen.process_group",
        "time.pthread_getcpuclockid",
        "threading.setprofile_all_threads",
    ),
    *(
        "threading.settrace_all_threads",
        "locale.getencoding",
        "queue.ShutDown",
        "copy.replace",
        "random.binomialvariate",
    ),
    *("re.NOFLAG", "asyncio.TaskGroup", "asyncio.Runner", "asyncio.timeout", "asyncio.Barrier", "warnings.deprecated"),
    *(
        "logging.getLevelNamesMapping",
        "string.Template.get_identifiers",
        "uuid.uuid7",
        "calendar.Month",
        "calendar.Day",
    ),
    *("ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError", "*.add_note", "*.with_segments", "*.walk_up"),
}
KEYWORDS = {"process_group", "onexc", "weakref_slot", "case_sensitive", "walk_up", "delete_on_close"}


def packed(folder: Path) -> dict[str, str]:
    with zipfile.ZipFile(pack(folder, ("stoker.providers.ssh.node",))) as files:
        names = [name for name in files.namelist() if name.endswith(".py")]
        return {name: files.read(name).decode() for name in names if name.startswith(RUNS_ON_NODES) and name != OTHERS}


def used(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of modules and what is taken from them, keywords of calls, and names of methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.name, node.lineno) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{one.name}", node.lineno) for one in node.names)
        elif isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else "*"
            yield from ((f"{place}.{node.attr}", node.lineno) for place in (base, "*"))
        elif isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Call):
            yield from ((f"({one.arg}=)", node.lineno) for one in node.keywords)


def test_a_node_needs_nothing_newer_than_python_3_10(tmp_path: Path) -> None:
    newer = (NEWER | {f"({one}=)" for one in KEYWORDS}) - COMPLETED
    found = []
    for name, source in packed(tmp_path).items():
        tree = ast.parse(source, name, feature_version=(3, 10))  # raises SyntaxError at what is newer
        found += [f"{name}:{line}: {what}" for what, line in used(tree) if what in newer]
    assert not found


def test_the_texts_of_an_enumeration_are_those_of_newer_pythons() -> None:
    import enum

    class Older(older.StrEnum):
        ONE = "one-word"
        TWO = enum.auto()

    class Newer(enum.StrEnum):
        ONE = "one-word"
        TWO = enum.auto()

    for ours, theirs in zip(Older, Newer, strict=True):
        assert (str(ours), f"{ours:>9}", ours.value, ours == theirs.value) == (
            str(theirs),
            f"{theirs:>9}",
            theirs.value,
            True,
        )


def pythons() -> list[str]:
    """This one, and an older one where there is one."""
    known = [
        sys.executable,
        shutil.which("python3.10"),
        *map(str, Path.home().glob(".pyenv/versions/3.10*/bin/python")),
    ]
    return [one for one in known if one and not subprocess.run([one, "-V"], capture_output=True).returncode][:2]


@pytest.mark.parametrize("python", pythons())
def test_every_module_of_the_agent_is_loaded_by_an_older_python(tmp_path: Path, python: str) -> None:
    agent = pack(tmp_path, ("stoker.providers.ssh.node",))
    names = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in packed(tmp_path)]
    loaded = [
        one for one in names if not one.startswith(("stoker.checkpoint.", "stoker.notebooks")) and "startup" not in one
    ]
    load = "import importlib, sys; from stoker.agent.older import complete; complete(); "
    load += "[importlib.import_module(one) for one in sys.argv[1:]]"
    environ = {**os.environ, "PYTHONPATH": str(agent)}
    subprocess.run([python, "-S", "-c", load, *loaded], env=environ, check=True)
    told = subprocess.run([python, str(agent), "--help"], capture_output=True, text=True)
    assert told.returncode == 2 and "Traceback" not in told.stderr, told
