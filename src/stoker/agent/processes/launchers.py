"""Which processes a node starts for a job: its ranks, or a launcher that starts them. Pure: nothing is started here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping

from stoker.agent.machine.machine import agent_command
from stoker.agent.processes.launch import RankCommand, Workplace, command_line, environment
from stoker.model.job.job import Launcher
from stoker.model.orders import Orders

_SHELL = "/bin/sh"
_SCRIPT = "STOKER_RANK_SCRIPT"  # what a launcher starts on each node, as a path there
RESTARTS = "PET_MAX_RESTARTS"  # torchrun's own variable
# By default, ranks that were restarted find addresses of the ranks before them in the store that torchrun shares.
_NEW_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def commands(orders: Orders, place: Workplace) -> list[RankCommand]:
    """The processes of this node, in the order of their ranks."""
    if orders.job.launcher is Launcher.TORCHRUN:
        return [_torchrun(orders, place)]
    if orders.job.launcher is Launcher.MPI:
        return [_mpi(orders, place)]
    shell, env = (_SHELL, "-c", command_line(orders, place.folder, place.newest)), environment(orders, place)
    if place.processes * orders.nodes == 1 and not orders.job.is_elastic:
        # Scripts and frameworks treat any of these variables as a sign of distributed training, and would start it.
        return [RankCommand(0, shell, env, terminal=orders.terminal)]
    return [
        RankCommand(rank, shell, {**_rendezvous(orders, place, local), **env})  # the job's own variables win
        for local, rank in enumerate(_ranks(orders, place))
    ]


def _ranks(orders: Orders, place: Workplace) -> tuple[int, ...]:
    first = place.processes * orders.node
    return tuple(range(first, first + place.processes))


def _rendezvous(orders: Orders, place: Workplace, local: int) -> dict[str, str]:
    rank = place.processes * orders.node + local
    cluster = {"cluster": {"worker": list(place.workers)}, "task": {"type": "worker", "index": rank}}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        **_common(orders, place),
        **({"TF_CONFIG": json.dumps(cluster)} if place.workers else {}),
    }


def _common(orders: Orders, place: Workplace) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(place.processes * orders.nodes),
        "LOCAL_WORLD_SIZE": str(place.processes),
        "NODE_RANK": str(orders.node),
        "MASTER_ADDR": orders.master_address,
        "MASTER_PORT": str(place.port),
    }


def _torchrun(orders: Orders, place: Workplace) -> RankCommand:
    """With a number of restarts, its elastic rendezvous: only that restarts the workers of all nodes together."""
    env, port = environment(orders, place), str(place.port)
    nodes: tuple[str, ...] = ("--nnodes", str(orders.nodes), "--node-rank", str(orders.node))
    meeting: tuple[str, ...] = ("--master-addr", orders.master_address, "--master-port", port)
    if int(env.get(RESTARTS) or 0):
        host = f"is_host={'true' if orders.node == 0 else 'false'}"
        own = place.workers[_ranks(orders, place)[0]].rpartition(":")[0] if place.workers else orders.master_address
        nodes = ("--nnodes", str(orders.nodes), "--rdzv-conf", host, "--local-addr", own.strip("[]"))
        env = {**_NEW_STORES, **env}
        at = f"{orders.master_address}:{port}"
        meeting = ("--rdzv-backend", "c10d", "--rdzv-id", f"{orders.run_id}-{orders.attempt}", "--rdzv-endpoint", at)
    count = ("--nproc-per-node", str(place.processes))
    script = [*_to_own_log(place, "$LOCAL_RANK"), f"exec {_line(orders, place)}"]
    argv = (place.python, "-m", "torch.distributed.run", *count, *nodes, *meeting, "--no-python", _SHELL)
    path = str(place.folder.launch / "rank")
    ranks = _ranks(orders, place)
    return RankCommand(ranks[0], (*argv, path), env, ranks, {"rank": _text(script)})


def _line(orders: Orders, place: Workplace) -> str:
    return shlex.join((_SHELL, "-c", command_line(orders, place.folder, place.newest)))


def _to_own_log(place: Workplace, local: str) -> list[str]:
    """See `RankPipes`."""
    return [f'exec >{shlex.quote(str(place.folder.launch))}/"{local}".out 2>&1']


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# Open MPI. `mpirun` on the first node starts its daemons on the others through a remote shell of ours
# (`agent/processes/remote.py`). The daemons start the ranks, in the environment that they were started in themselves.

_MPI_DEFAULTS = {
    # Open MPI refuses to run as root, which agents in containers and on new VMs are.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Ranks are numbered node by node, and use all cores of their node: training has threads of its own.
    "OMPI_MCA_rmaps_base_mapping_policy": "slot",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
_LOOPBACK_ONLY = {"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}  # by default Open MPI never uses it between nodes
LOST = "failed-"  # the file of a rank that failed, with its exit code


def host_name(node: int) -> str:
    """As `mpirun` knows a node. No name that can be resolved: it would take one that is this machine for the first."""
    return f"stoker-node-{node}"


def _mpi(orders: Orders, place: Workplace) -> RankCommand:
    ranks, script = _ranks(orders, place), {"rank": _text(_mpi_rank(orders, place))}
    near = _LOOPBACK_ONLY if orders.nodes > 1 and orders.master_address.startswith("127.") else {}
    env = {**_MPI_DEFAULTS, **near, **environment(orders, place), _SCRIPT: str(place.folder.launch / "rank")}
    if orders.node:
        line = f"{place.remote.command}; code=$?; echo $code >&3; exit $code"
        return RankCommand(ranks[0], (_SHELL, "-c", line), env, ranks, script, place.remote.line)
    slots = [f"localhost slots={place.processes}"]
    slots += [f"{host_name(node)} slots={place.processes}" for node in range(1, orders.nodes)]
    files = {**script, "hosts": _text(slots), **_remote_shell(place)}
    count = str(place.processes * orders.nodes)
    argv = ("mpirun", "--hostfile", str(place.folder.launch / "hosts"), "-np", count, "--wdir", "/")
    started = (_SHELL, "-c", f'exec {_SHELL} "${_SCRIPT}"')
    return RankCommand(0, (*argv, *_by_remote_shell(place), *started), env, ranks, files)


def _by_remote_shell(place: Workplace) -> tuple[str, ...]:
    """Its daemons stay children of what has started them, so that their end is noticed. The path is relative to the
    working directory of `mpirun`, because `mpirun` splits the value at spaces and colons."""
    if not place.remote.hosts:
        return ()
    shell = f"{_SHELL} {os.path.relpath(place.folder.launch / 'remote', place.folder.work)}"
    return ("--leave-session-attached", "--mca", "plm_rsh_agent", shell, "--mca", "plm_rsh_no_tree_spawn", "1")


def _remote_shell(place: Workplace) -> dict[str, str]:
    if not place.remote.hosts:
        return {}
    known = {host_name(node): at for node, at in place.remote.hosts.items()}
    peers = place.folder.launch / "peers.json"
    program = shlex.join([*agent_command(place.library, "remote"), "--peers", str(peers), "--"])
    return {
        "peers.json": json.dumps({"secret": place.remote.secret, "hosts": known}),
        "remote": _text([f'exec {program} "$@"']),
    }


def _mpi_rank(orders: Orders, place: Workplace) -> list[str]:
    """A rank: in the working directory of its node, with the variables that plain ranks have, and its own log. Its
    shell notes a failure: `mpirun` says on the first node only which rank failed."""
    launch, lines = shlex.quote(str(place.folder.launch)), [f"cd {shlex.quote(str(place.folder.work))} || exit 1"]
    if place.processes * orders.nodes > 1:
        lines += _exports(_mpi_variables(orders, place), orders.job.env)
    # Nodes that are one machine must not share files of the same name in /dev/shm.
    lines += _exports({"OMPI_MCA_btl_vader_backing_directory": launch}, orders.job.env) if orders.nodes > 1 else []
    return [
        *lines,
        *_to_own_log(place, "$OMPI_COMM_WORLD_LOCAL_RANK"),
        _line(orders, place),
        "code=$?",
        f"[ $code -eq 0 ] || echo $code >{launch}/{LOST}$OMPI_COMM_WORLD_RANK",
        "exit $code",
    ]


def _mpi_variables(orders: Orders, place: Workplace) -> dict[str, str]:
    """As words of a shell script."""
    known = {"RANK": '"$OMPI_COMM_WORLD_RANK"', "LOCAL_RANK": '"$OMPI_COMM_WORLD_LOCAL_RANK"'}
    known |= {name: shlex.quote(value) for name, value in _common(orders, place).items()}
    if place.workers:
        task = json.dumps({"cluster": {"worker": list(place.workers)}, "task": {"type": "worker", "index": 0}})
        begin, _, end = task.rpartition("0")
        known["TF_CONFIG"] = f'{shlex.quote(begin)}"$OMPI_COMM_WORLD_RANK"{shlex.quote(end)}'
    return known


def _exports(words: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    return [f"export {name}={word}" for name, word in words.items() if name not in given]  # the job's own win
