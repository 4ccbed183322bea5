"""Stores by name: added, tried, chosen and forgotten, with their secrets in one place and nowhere else."""

from __future__ import annotations

import json
import re
import secrets
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from services import KEY, Azurite, S3Server
from stoker.model.cause import Cause

TOKEN = re.compile(rb"sig=[A-Za-z0-9%+/]{20}")


def add(shell: Shell, *args: str, secret: str = "", code: int = 0) -> dict[str, Any]:
    """`stoker store add` with the secret on stdin, as a program gives it."""
    process = shell.start("store", "add", *args, "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(secret, timeout=60)
    assert process.returncode == code, out + err
    told: dict[str, Any] = json.loads(out)
    return told


def verdicts(findings: list[dict[str, str]]) -> dict[str, str]:
    return {one["name"]: one["verdict"] for one in findings}


def test_a_store_is_added_listed_chosen_and_forgotten(shell: Shell, azurite: Azurite) -> None:
    url = azurite.new_container()
    told = add(shell, "blob", url, "--key", secret=KEY)
    assert told["added"]
    assert set(verdicts(told["findings"]).values()) == {"ok"}
    assert set(verdicts(told["findings"])) == {
        "reach", "clock", "list", "write", "read", "conditional write", "append", "run folder", "delete", "node tokens",
    }  # fmt: skip
    stores = json.loads(shell.stoker("store", "ls", "--json").stdout)["stores"]
    assert [(one["name"], one["workspace"], one["credential"]) for one in stores] == [
        ("folder", True, "none"),
        ("blob", False, "account-key"),
    ]
    assert stores[1]["url"] == url
    shell.stoker("store", "use", "blob")
    assert "blob" in shell.stoker("store", "rm", "blob", "--yes", code=2).stderr
    shell.stoker("store", "use", "folder")
    shell.stoker("store", "rm", "blob", "--yes")
    assert [one["name"] for one in json.loads(shell.stoker("store", "ls", "--json").stdout)["stores"]] == ["folder"]
    assert KEY not in (shell.home / "credentials.json").read_text()


def test_a_container_that_is_not_there_is_made(shell: Shell, azurite: Azurite) -> None:
    url = f"{azurite.endpoint}/not-there-yet"
    told = add(shell, "blob", url, "--key", secret=KEY)
    assert set(verdicts(told["findings"]).values()) == {"ok"}, told


def test_a_container_that_a_sas_cannot_make_is_reported_as_missing(shell: Shell, azurite: Azurite) -> None:
    url = f"{azurite.endpoint}/never-there"
    told = add(shell, "blob", url, secret=azurite.sas(url).values["token"], code=1)
    failed = {one["name"]: one["found"] for one in told["findings"] if one["verdict"] == "fail"}
    assert f"`{url}`" in failed["write"]


def test_the_choice_of_store_outlives_the_server(shell: Shell, azurite: Azurite) -> None:
    add(shell, "blob", azurite.new_container(), "--key", "--use", secret=KEY)
    shell.stoker("server", "stop")
    assert "blob" in shell.stoker("store", "check", "--json").stdout


def test_secrets_are_in_one_private_file_and_nowhere_else(shell: Shell, azurite: Azurite) -> None:
    """The account's key, and the tokens made from it, while a run uses them."""
    add(shell, "blob", azurite.new_container(), "--use", secret=KEY)
    shell.job("sleep 3; env; echo done")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: shell.facts("job-1")["state"] == "running", "the run")
    lists = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in shell.processes()]
    assert not any(b"sig=" in one or KEY.encode() in one for one in lists)
    assert shell.ended("job-1")["state"] == "succeeded"
    printed = shell.stoker("logs", "job-1").stdout
    assert "done" in printed
    assert "STOKER_ACCESS" not in printed and "STOKER_SEAL" not in printed and "sig=" not in printed
    shell.stoker("store", "check", "blob")
    holders = [path for path in shell.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holders == [shell.home / "credentials.json"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    tokens = [path for path in shell.home.rglob("*") if path.is_file() and TOKEN.search(path.read_bytes())]
    assert tokens == [], "a token outlived its node"
    kept = [azurite.folder, shell.folder]
    told = [path for top in kept for path in top.rglob("*") if path.is_file() and TOKEN.search(path.read_bytes())]
    assert told == [], "a token is in the store"


def test_a_wrong_key_is_refused_with_a_message_and_not_kept(shell: Shell, azurite: Azurite) -> None:
    wrong = KEY[:-8] + "AAAAAA=="
    told = add(shell, "blob", azurite.new_container(), "--key", secret=wrong, code=1)
    assert not told["added"]
    failed = {one["name"]: one for one in told["findings"] if one["verdict"] == "fail"}
    assert "list" in failed
    assert failed["list"]["advice"]
    assert wrong not in json.dumps(told)
    assert "blob" not in shell.stoker("store", "ls").stdout
    assert not (shell.home / "credentials.json").exists() or wrong not in (shell.home / "credentials.json").read_text()


def test_a_sas_that_only_reads_says_what_it_lacks(shell: Shell, azurite: Azurite) -> None:
    url = azurite.new_container()
    told = add(shell, "blob", url, secret=azurite.sas(url, "rl").values["token"], code=1)
    found = verdicts(told["findings"])
    assert (found["reach"], found["list"], found["write"], found["delete"]) == ("ok", "ok", "fail", "skip")
    add(shell, "blob", url, "--no-check", secret=azurite.sas(url, "rl").values["token"])
    done = shell.stoker("store", "check", "blob", code=1)
    assert "fail  write" in done.stdout


def test_a_sas_that_has_ended_says_so(shell: Shell, azurite: Azurite) -> None:
    url = azurite.new_container()
    told = add(shell, "blob", url, secret=azurite.sas(url, for_s=-60).values["token"], code=1)
    assert verdicts(told["findings"])["list"] == "fail"
    text = json.dumps(told["findings"])
    assert "expired on" in text
    assert "sig=" not in text


def test_a_refused_connection_is_reported(shell: Shell) -> None:
    told = add(shell, "blob", "http://127.0.0.1:9/account1/container", "--key", secret=KEY, code=1)
    assert verdicts(told["findings"])["reach"] == "fail"
    assert "127.0.0.1:9" in told["findings"][0]["found"]
    assert set(verdicts(told["findings"]).values()) == {"fail", "skip"}


@pytest.mark.parametrize(
    ("name", "url", "word"),
    [
        ("Blob", "az://account1/container", "cannot name a store"),
        ("blob", "https://account1.blob.core.windows.net/c0ntainer?sv=1&sig=abc", "token"),
        ("blob", "ftp://somewhere/else", "ftp"),
        ("folder", "az://account1/container", "folder"),
    ],
)
def test_what_cannot_be_a_store_is_refused(shell: Shell, name: str, url: str, word: str) -> None:
    process = shell.start("store", "add", name, url, "--key", stdin=subprocess.PIPE)
    out, err = process.communicate(KEY, timeout=60)
    assert process.returncode == 2, out + err
    assert word in err
    assert "sig=abc" not in err


def test_a_folder_elsewhere_keeps_runs_too(shell: Shell, tmp_path: Path) -> None:
    add(shell, "nas", (tmp_path / "nas").as_uri(), "--use")
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    assert shell.stoker("logs", "job-1").stdout == "hello\n"
    assert list((tmp_path / "nas" / "runs").iterdir())
    assert not (shell.home / "store" / "runs").exists()


def test_runs_stay_in_their_store_when_another_one_is_chosen(shell: Shell, tmp_path: Path) -> None:
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    add(shell, "nas", (tmp_path / "nas").as_uri(), "--use")
    shell.stoker("run")
    assert [shell.facts(name)["store"] for name in ("job-1", "job-2")] == ["folder", "nas"]
    assert shell.stoker("logs", "job-1").stdout == "hello\n"
    shell.stoker("rerun", "job-1")
    assert shell.facts("job-3")["store"] == "nas"
    assert shell.stoker("logs", "job-3").stdout == "hello\n"
    shell.stoker("store", "use", "folder")
    assert shell.refused("store", "rm", "nas", "--yes")["cause"] == Cause.STORE_IN_USE
    shell.stoker("rm", "job-2", "job-3", "--yes")
    shell.stoker("store", "rm", "nas", "--yes")


def test_a_damaged_database_is_rebuilt_from_every_store(shell: Shell, azurite: Azurite) -> None:
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    add(shell, "blob", azurite.new_container(), "--use", secret=KEY)
    shell.stoker("run")
    shell.stoker("server", "stop")
    (shell.home / "stoker.db").write_bytes(b"not a database at all" * 500)
    listed = shell.stoker("ps").stdout
    assert "job-1" in listed and "job-2" in listed
    assert shell.stoker("logs", "job-2").stdout == "hello\n"
    assert "blob    yes" in shell.stoker("store", "ls").stdout


def test_a_database_is_not_rebuilt_without_a_store_that_holds_runs(shell: Shell, tmp_path: Path) -> None:
    from blobservice import BlobService

    (tmp_path / "service").mkdir()
    with BlobService(tmp_path / "service") as service:
        add(shell, "blob", service.azurite.new_container(), "--use", secret=KEY)
        shell.job("echo hello")
        shell.stoker("run")
        shell.stoker("server", "stop")
        damaged = b"not a database at all" * 500
        (shell.home / "stoker.db").write_bytes(damaged)
        service.stop()
        done = shell.stoker("ps", code=125)
        assert "`blob`" in done.stderr and "damaged" in done.stderr
        assert (shell.home / "stoker.db").read_bytes() == damaged, "nothing may be changed"
        service.start()
        assert "job-1" in shell.stoker("ps").stdout


def test_a_client_is_given_a_part_of_a_store(shell: Shell, azurite: Azurite) -> None:
    from stoker.client.api.client import Client
    from stoker.client.api.resources import Stores
    from stoker.client.settings import from_environment
    from stoker.errors import StoreDenied
    from stoker.stores.opening import open_access

    add(shell, "blob", azurite.new_container(), secret=KEY)
    connection = Client.connect(from_environment(shell.environ)).connection
    access = Stores(connection).access("blob", reads=["datasets/"], writes=["data/"])
    assert access.expires_at > time.time()
    store = open_access(access)
    store.put("data/aa/x", b"1")
    assert store.get("data/aa/x") == b"1"
    for key in ("datasets/x.json", "blobs/aa/x"):
        with pytest.raises(StoreDenied):
            store.put(key, b"1")


def test_an_s3_bucket_is_tried_for_everything(shell: Shell, s3_server: S3Server) -> None:
    told = add(shell, "lake", s3_server.new_bucket(), secret="stoker:not-a-secret")
    assert told["added"], told
    assert told["store"]["credential"] == "s3-key"
    assert "fail" not in verdicts(told["findings"]).values()


def test_a_container_with_the_longest_name_keeps_runs_and_a_longer_one_is_refused(
    shell: Shell, azurite: Azurite
) -> None:
    longest = secrets.token_hex(21)
    told = add(shell, "blob", f"{azurite.endpoint}/{longest}", "--use", secret=KEY)
    assert verdicts(told["findings"])["run folder"] == "ok"
    shell.job("echo hello")
    assert shell.stoker("run").stdout == "hello\n"
    told = add(shell, "more", f"{azurite.endpoint}/{longest}x", secret=KEY, code=1)
    assert any("at most 42" in one["found"] for one in told["findings"])
    process = shell.start("store", "add", "more", f"{azurite.endpoint}/{longest}x", "--no-check", stdin=subprocess.PIPE)
    assert "at most 42" in process.communicate(KEY, timeout=60)[1]
    assert process.returncode == 2
    assert "more" not in shell.stoker("store", "ls").stdout
