"""Who may talk to a user's server, and to whom a user's commands talk: real processes, and another user who tries."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import Shell
from stranger import NOBODY, as_nobody, listening

from stoker.client.api.http import Line, LineRefused
from stoker.model.cause import Cause

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can be played without being root")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder whose parents are open to everybody, as `/home` is."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def user(shell: Shell, open_place: Path) -> Shell:
    shell.home = open_place / "home"
    shell.environ["STOKER_HOME"] = str(shell.home)
    shell.environ["HF_TOKEN"] = "hf_very_secret"
    shell.write("train.py", "print('my own idea')")
    shell.job("python train.py", secrets=["HF_TOKEN"])
    return shell


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def ports_of(pid: int) -> set[str]:
    """The TCP ports that a process listens on."""
    mine = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}


def on_port(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def at_path(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen(64)
    return listener


def test_a_server_listens_in_its_home_and_on_no_port(user: Shell) -> None:
    user.stoker("server", "start")
    assert ports_of(user.server_pid()) == set()
    assert (mode(user.home), mode(user.home / "server.sock")) == (0o700, 0o600)
    user.home.chmod(0o755)
    assert as_nobody(lambda: socket.socket(socket.AF_UNIX).connect(str(user.home / "server.sock"))) == "PermissionError"


def test_a_home_of_any_depth_has_a_socket(user: Shell) -> None:
    user.home = user.home / ("a-very-long-name-of-a-folder" * 4) / ("and-another-one" * 6)
    user.environ["STOKER_HOME"] = str(user.home)
    assert len(str(user.home)) > 200
    assert user.stoker("run").stdout == "my own idea\n"
    assert mode(user.home / "server.sock") == 0o600
    links = [one for one in Path("/tmp").glob("stoker-*/home") if one.is_symlink()]
    assert user.home not in [one.resolve() for one in links], "the short way there is gone again"


def test_a_port_is_listened_on_only_where_it_was_asked_for(user: Shell) -> None:
    port = free_port()
    up = json.loads(user.stoker("server", "start", "--port", str(port), "--json").stdout)["server"]
    assert up["http"] == f"http://127.0.0.1:{port}"
    assert len(ports_of(user.server_pid())) == 1
    user.stoker("server", "start", "--port", str(port))
    refused = user.refused("server", "start", "--port", str(free_port()))
    assert refused["cause"] == Cause.ALREADY_RUNNING and f"http://127.0.0.1:{port}" in refused["message"]


def test_after_a_killed_server_another_user_on_its_port_is_sent_nothing(user: Shell) -> None:
    port = free_port()
    user.stoker("server", "start", "--port", str(port))
    token = json.loads((user.home / "server.json").read_text())["token"]
    end_at_once(user)
    with listening(lambda: on_port(port)) as stranger:
        assert user.stoker("run").stdout == "my own idea\n"
        assert stranger.so_far() == b"", "the user's own commands never use the port"

        away = {"STOKER_SERVER": f"http://127.0.0.1:{port}", "STOKER_TOKEN": token}
        named = Shell(user.home, user.folder, {**user.environ, **away})
        error = named.refused("run", code=125)
        assert error["code"] == "server-unavailable" and "token" in error["message"]
        heard = stranger.so_far()
    assert re.fullmatch(rb"(GET /v1/proof\?nonce=[0-9a-f]{32} HTTP/1.1\r\nHost: [\d.:]+\r\n\r\n)+", heard), heard


def test_after_a_killed_server_another_user_on_its_socket_is_sent_nothing(user: Shell) -> None:
    """A home that everybody may write to: the worst that an older Stoker, or its user, can have left."""
    user.stoker("server", "start")
    end_at_once(user)
    user.home.chmod(0o777)
    with listening(lambda: at_path(user.home / "server.sock")) as stranger:
        assert user.stoker("run").stdout == "my own idea\n"
        assert stranger.so_far() == b""
    assert mode(user.home) == 0o700


def test_a_socket_of_another_user_is_hung_up_on(open_place: Path) -> None:
    place = open_place / "shared"
    place.mkdir()
    place.chmod(0o777)
    with listening(lambda: at_path(place / "server.sock")) as stranger:
        with pytest.raises(LineRefused, match=rf"\b{NOBODY}\b"):
            Line(f"unix:{place}/server.sock", 5.0)
        assert stranger.so_far() == b""


def test_without_a_token_a_server_on_a_port_is_not_talked_to(user: Shell) -> None:
    port = free_port()
    with listening(lambda: on_port(port)) as stranger:
        user.environ["STOKER_SERVER"] = f"http://127.0.0.1:{port}"
        done = user.stoker("run", code=125)
        assert "STOKER_TOKEN" in done.stderr
        assert stranger.so_far() == b""


def test_a_home_that_is_open_to_others_is_closed_at_the_next_start(user: Shell) -> None:
    user.stoker("server", "start")
    user.stoker("server", "stop")
    secrets = [user.home / name for name in ("stoker.db", "server.log", "credentials.json", "secrets")]
    secrets[2].write_text("{}")
    secrets[3].mkdir()
    (user.home / "secrets/run.json").write_text("{}")
    for one in (user.home, *secrets, user.home / "secrets/run.json"):
        one.chmod(0o755)
    user.stoker("server", "start")
    assert mode(user.home) == mode(user.home / "secrets") == 0o700
    opened = [
        one.name for one in (*user.home.glob("stoker.db*"), *secrets, user.home / "server.json") if mode(one) & 0o77
    ]
    assert opened == []
    assert mode(user.home / "secrets/run.json") & 0o077 == 0


def test_a_running_server_closes_its_home_again(user: Shell) -> None:
    user.stoker("server", "start")
    user.home.chmod(0o777)
    user.wait_for(lambda: mode(user.home) == 0o700, "the home to be closed")


def test_a_home_that_belongs_to_somebody_else_is_refused_with_a_message(user: Shell) -> None:
    user.home.mkdir()
    os.chown(user.home, NOBODY, NOBODY)
    for words in (("run",), ("server", "status"), ("server", "start")):
        refused = user.refused(*words, code=125)
        assert refused["code"] == "home-unusable" and str(NOBODY) in refused["message"]
        assert "STOKER_HOME" in refused["hint"]
    assert list(user.home.iterdir()) == []
    assert mode(user.home) & 0o077, "it is not ours to change"
    assert "belongs to user" in user.stoker("doctor", code=1).stdout


def test_a_folder_that_everybody_shares_is_no_home(user: Shell) -> None:
    user.home.mkdir()
    user.home.chmod(0o1777)
    done = user.stoker("run", code=125)
    assert "share" in done.stderr
    assert mode(user.home) == 0o1777


def end_at_once(user: Shell) -> None:
    user.kill_server()
    user.wait_for(lambda: not user.processes(), "the killed server to be gone")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
