"""Powers a machine on: `boot.py FOLDER` reads the order there, isolates the machine if requested, and becomes init.

Its standard input is a channel to the twin: it reports the pid of init, and waits until the metadata service is ready.
If the twin dies in between, the channel closes, and nothing has been started.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.twin.machines.guest.init import Init
from stoker.twin.machines.guest.places import GuestFolders

SHIMS = ("systemctl", "journalctl", "cloud-init", "poweroff", "halt", "reboot")  # first in PATH


def main(folder: Path) -> int:
    order = json.loads((folder / "order.json").read_bytes())
    plan = json.loads((folder / "plan.json").read_bytes())
    shim = (Path(__file__).parent / "shim.py").read_text(encoding="utf-8")
    channel = socket.socket(fileno=os.dup(0))
    os.set_inheritable(order["lock_fd"], False)  # held by the machine's own processes, not by its services
    if order["walled"]:
        return _hold(order, plan, shim, channel, folder)
    if sys.platform == "linux":
        from stoker.twin.machines.guest.kernel import adopt_orphans  # where there is such a call

        adopt_orphans()
    channel.sendall(b"%d\n" % os.getpid())
    return _live(order, plan, shim, channel)


def _hold(order: Mapping[str, Any], plan: Mapping[str, Any], shim: str, channel: socket.socket, folder: Path) -> int:
    """Stays outside, in the network of the switch, which exists as long as one of these; ends with its machine."""
    from stoker.twin.machines.guest import kernel, walls  # Linux only

    walls.make_network(order, folder)
    kernel.unshare(kernel.NEW_PIDS)
    child = os.fork()
    if child:
        kernel.enter(int(order["switch_fd"]), kernel.NEW_NETWORK)
        os.close(int(order["switch_fd"]))
        channel.sendall(b"%d\n" % child)
        channel.close()
        os.close(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kernel.die_with_parent()
    os.close(int(order["switch_fd"]))
    walls.make_file_system(order)
    walls.name_hosts(order["hostname"], order["address"])
    return _live(order, plan, shim, channel)


def _live(order: Mapping[str, Any], plan: Mapping[str, Any], shim: str, channel: socket.socket) -> int:
    places = GuestFolders("" if order["walled"] else order["root"])
    for name in ("/etc/systemd/system", "/var/log/journal", "/var/tmp", "/run", "/root", "/home", "/tmp"):
        places.path(name).mkdir(parents=True, exist_ok=True)
    _install_shims(places, shim, order)
    channel.sendall(b"up\n")
    if channel.recv(3) != b"go\n":
        return 1
    channel.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    while Init(places, plan, order["environment"], order["mark"]).run() == "reboot":
        shutil.rmtree(places.path("/run/cloud-init"), ignore_errors=True)
    return 0


def _install_shims(places: GuestFolders, shim: str, order: Mapping[str, Any]) -> None:
    """Over the real ones, which would not find a systemd here."""
    text = f"#!{order['python']} -IS\n" + shim.replace('ROOT = ""', f"ROOT = {places.root!r}", 1)
    first = places.path("/usr/bin/systemctl")
    first.parent.mkdir(parents=True, exist_ok=True)
    if not first.exists() or first.read_bytes() != text.encode():
        first.unlink(missing_ok=True)
        first.write_text(text, encoding="utf-8")
        first.chmod(0o755)
    for name in SHIMS:
        link = places.path("/usr/local/sbin") / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.unlink(missing_ok=True)
            link.symlink_to(first)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
