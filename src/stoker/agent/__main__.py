"""`python -I -S agent.pyz run|stand-by|end …`. Arguments are parsed by hand: importing argparse takes longer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.agent.attempt.attempt import carry_out
from stoker.agent.machine.machine import DRIVER_S, NodeFolder, NodeMachine
from stoker.agent.processes.family import MARK, end
from stoker.files import claim
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore

if TYPE_CHECKING:
    from stoker.agent.machine.tenant import Tenancy

USAGE = """usage: run --store URL --orders KEY --folder PATH --environments PATH [--uv PATH]
           [--cloud MODULE --events URL]
           [--ready-within SECONDS] [--driver-within SECONDS] [--reboot-mark PATH] [--package-lock PATH]
           [--engine-unit NAME] [--within-image 1]
           [--private PATH] [--lock-fd N] [--variables-fd N] [--restored 1]
       tenant --config PATH
       stand-by --channel-fd N
       end --folder PATH --key KEY
       enter --folder PATH [--config PATH] [-- COMMAND...]
       attach --folder PATH
       engines [--image NAME]
       relay
       remote --peers PATH -- HOST COMMAND...
       fusermount [-o OPTIONS] DIR"""
_NEEDED = {
    "run": {"--store", "--orders", "--folder", "--environments"},
    "tenant": {"--config"},
    "stand-by": {"--channel-fd"},
    "end": {"--folder", "--key"},
    "attach": {"--folder"},
    "engines": set[str](),
    "relay": set[str](),
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["fusermount"]:
        from stoker.agent.data import mounts  # here, because only a mount needs it

        return mounts.main(arguments[1:], os.environ)
    if arguments[:2] == ["remote", "--peers"] and arguments[3:4] == ["--"]:
        from stoker.agent.processes.remote import call  # here, because only mpirun needs it

        return call(Path(arguments[2]), arguments[4], " ".join(arguments[5:]))
    if arguments[:1] == ["enter"]:
        return _enter(arguments[1:])
    verb, options = (arguments[0] if arguments else ""), dict(zip(arguments[1::2], arguments[2::2], strict=False))
    if verb not in _NEEDED or not _NEEDED[verb] <= options.keys():
        print(USAGE, file=sys.stderr)  # noqa: T201  # the answer to a wrong command line
        return 2
    if verb == "end":
        return end(NodeFolder(Path(options["--folder"]).absolute()), options["--key"], os.environ)
    if verb == "attach":
        from stoker.agent.visits.terminal import attach  # here, because only people need it

        return attach(NodeFolder(Path(options["--folder"]).absolute()))
    if verb == "engines":
        return _engines(options.get("--image", ""))
    if verb == "relay":
        return _relay()
    if verb == "tenant":
        return _live(Path(options["--config"]))
    if verb == "stand-by":
        return _stand_by(int(options["--channel-fd"]))
    return run(options, os.environ)


def run(options: Mapping[str, str], variables: Mapping[str, str]) -> int:
    """Runs one attempt, from its orders to its final report."""
    variables = {**variables, **_handed_over(options.get("--variables-fd"))}
    folder = NodeFolder(Path(options["--folder"]).absolute(), _private(options))
    _keep_files_private()
    if not _lock(folder, options.get("--lock-fd")):
        return 0
    _speak_to(folder.agent_log)
    store = _store(options, variables, folder)
    environments = Path(options["--environments"]).absolute()
    given = _without_access(variables)
    machine = NodeMachine(
        folder,
        environments,
        options.get("--uv", ""),
        _library(),
        given,
        cloud=options.get("--cloud", ""),
        events=options.get("--events", ""),
        ready_s=float(options.get("--ready-within", 0)),
        reboot_mark=options.get("--reboot-mark", ""),
        restored="--restored" in options,
        package_lock=options.get("--package-lock", ""),
        engine_unit=options.get("--engine-unit", ""),
        within_image="--within-image" in options,
        quiet_s=float(options.get("--driver-within", DRIVER_S)),
    )
    return carry_out(store, options["--orders"], machine)


def _handed_over(fd: str | None) -> dict[str, str]:
    """Variables from an unnamed file: a script could read the environment that its agent was started with."""
    if fd is None:
        return {}
    with os.fdopen(int(fd), "rb") as file:
        file.seek(0)
        found: dict[str, str] = json.loads(file.read())
    return found


def _store(options: Mapping[str, str], variables: Mapping[str, str], folder: NodeFolder) -> Store:
    if not variables.get("STOKER_ACCESS"):
        return FolderStore.from_url(options["--store"])
    from stoker.agent.machine.renewal import RenewedStore  # a folder needs no HTTP
    from stoker.stores.access import Access

    access = Access.from_text(variables["STOKER_ACCESS"])
    return RenewedStore(
        access, variables["STOKER_SEAL"], layout.access(*layout.node_with(options["--orders"])), folder.access
    )


def _without_access(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that scripts and their child processes may see."""
    for name in ("STOKER_ACCESS", "STOKER_SEAL"):
        os.environ.pop(name, None)
    return {name: value for name, value in variables.items() if name not in ("STOKER_ACCESS", "STOKER_SEAL")}


def _live(config: Path) -> int:
    import subprocess  # here, with the rest, because only a VM that is billed needs them

    from stoker.agent.machine.tenant import Tenancy, Tenant

    first = Tenancy.read(config)
    private = _private(first.options)
    folder = NodeFolder(Path(first.options["--folder"]) / "tenant", private / "tenant" if private else None)

    def start(tenancy: Tenancy) -> subprocess.Popen[bytes]:
        words = [word for pair in tenancy.options.items() for word in pair]
        key = {name: value for name, value in tenancy.variables.items() if name == MARK}
        fd = os.memfd_create("variables")
        try:
            os.write(fd, json.dumps(dict(tenancy.variables)).encode())
            command = [sys.executable, "-I", "-S", str(_library()), "run", *words, "--variables-fd", str(fd)]
            return subprocess.Popen(command, env={**os.environ, **key}, stdin=subprocess.DEVNULL, pass_fds=(fd,))
        finally:
            os.close(fd)

    return Tenant(first, lambda tenancy: _store(tenancy.options, tenancy.variables, folder), start).live()


def _relay() -> int:
    """Its file descriptors come from its parent: the terminal, the log, and the socket for visitors."""
    import socket  # here, because few scripts have a terminal

    from stoker.agent.visits.terminal import relay

    return relay(0, 1, socket.socket(fileno=3))


def _engines(image: str) -> int:
    """Which container engines this computer has: for a server that asks before a run."""
    from stoker import containers  # here, with the rest, because few runs have one
    from stoker.model import wire

    sys.stdout.buffer.write(wire.dump(containers.survey(image, os.environ)))
    return 0


def _private(options: Mapping[str, str]) -> Path | None:
    return Path(options["--private"]) if "--private" in options else None


def _enter(arguments: list[str]) -> int:
    """With `--config`, the file of the VM's tenant, the secrets that it passes to the agent are masked in the
    output."""
    from stoker.agent.visits.terminal import enter, refuse  # here, because only people need it

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = dict(zip(arguments[:end:2], arguments[1:end:2], strict=False)), arguments[end + 1 :]
    secrets: list[str] = []
    if "--config" in options:
        from stoker.agent.machine.tenant import Tenancy
        from stoker.errors import NoCipher

        first = Tenancy.read(Path(options["--config"]))
        try:
            newest = first.newest(_read_only(first)) if first.sealed else first
        except NoCipher as error:
            return refuse(error.message)
        if newest.sealed:
            return refuse("the store does not say which values to mask on this VM")
        secrets = [*first.variables.values(), *newest.variables.values()]
    return enter(NodeFolder(Path(options["--folder"])), words, os.environ, secrets)


def _read_only(tenancy: Tenancy) -> Store:
    """The store with read access: by the newest token of this VM's tenant, or its first."""
    from stoker.stores.access import Access
    from stoker.stores.opening import open_access

    private = _private(tenancy.options)
    noted = NodeFolder(Path(tenancy.options["--folder"]) / "tenant", private / "tenant" if private else None).access
    return open_access(Access.from_text(noted.read_text() if noted.exists() else tenancy.variables["STOKER_ACCESS"]))


def _stand_by(fd: int) -> int:
    import socket  # here, because agents that are started one by one do not need it

    from stoker.agent.processes.standby import stand_by

    return stand_by(socket.socket(fileno=fd), _run_with)


def _run_with(options: Mapping[str, str], variables: Mapping[str, str]) -> int:
    """As `run`, in a process that was started with other variables."""
    os.environ.clear()
    os.environ.update(variables)
    return run(options, variables)


def _library() -> Path:
    """Where scripts import stoker from: the zipapp that this runs from, or the source folder."""
    return Path(__file__).absolute().parents[2]


def _keep_files_private() -> None:
    """No rank inherits a file descriptor of the agent, above all not its lock."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  # names are all that is wanted
        with suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def _lock(folder: NodeFolder, inherited: str | None) -> bool:
    """Holds the node's lock for the life of this process and no longer: no child inherits it."""
    if inherited is not None:
        return True
    folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return claim(folder.lock) is not None


def _speak_to(log: Path) -> None:
    """Tracebacks of bugs go to the agent's own log, whatever stderr is."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard, own in enumerate((os.open(os.devnull, os.O_RDONLY), fd, fd)):
        os.dup2(own, standard)


if __name__ == "__main__":
    sys.exit(main())
