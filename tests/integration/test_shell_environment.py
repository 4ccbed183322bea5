"""What a script finds of the shell that submitted it: in its first attempt, in later ones, and in a rerun."""

from __future__ import annotations

import json
from pathlib import Path

from shell import Shell

SHOW = """
    import json, os, sys
    from pathlib import Path

    names = ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SEED", "FROM_FILE", "HF_TOKEN", "EDITOR"]
    names += ["HIP_VISIBLE_DEVICES"] if "--amd" in sys.argv else []
    print(json.dumps({name: os.environ.get(name) for name in names}))
    Path("outputs/has-token").write_text(str(bool(os.environ.get("HF_TOKEN"))))
    sys.exit(3 if os.environ["STOKER_ATTEMPT"] == "1" and "--fail" in sys.argv else 0)
"""
TOKEN = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm24681357"


def test_exported_variables_reach_every_attempt_and_a_rerun_has_the_same(shell: Shell) -> None:
    shell.write("train.py", SHOW)
    shell.job("python train.py --fail", retries=1)
    shell.stoker("server", "start")  # whose own shell has other values
    shell.environ |= {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "5", "EDITOR": "vi", "HF_TOKEN": TOKEN}
    plan = json.loads(shell.stoker("plan", "--json").stdout)["plan"]
    assert plan["taken"] == {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "5"}
    assert any("HF_TOKEN" in note and "secrets:" in note for note in plan["notes"]) and TOKEN not in json.dumps(plan)
    done = shell.stoker("run")
    found = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "5", "SEED": None, "FROM_FILE": None}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{**found, "HF_TOKEN": None, "EDITOR": None}] * 2
    assert "CUDA_VISIBLE_DEVICES=5, OMP_NUM_THREADS=3" in done.stderr
    shell.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    again = shell.stoker("rerun", "job-1", "--set", "run=python train.py")
    assert json.loads(again.stdout) == {**found, "HF_TOKEN": None, "EDITOR": None}
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "EDITOR", "HF_TOKEN"):
        del shell.environ[name]
    later = shell.stoker("run", "--set", "run=python train.py")
    assert set(json.loads(later.stdout).values()) == {None}
    assert "CUDA_VISIBLE_DEVICES" not in later.stderr


def test_devices_of_a_server_that_was_started_by_hand_are_those_of_runs_that_name_none(shell: Shell) -> None:
    shell.write("train.py", SHOW)
    shell.job("python train.py --amd")
    shell.environ |= {"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "7"}
    shell.stoker("server", "start")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        del shell.environ[name]
    seen = json.loads(shell.stoker("run").stdout)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HIP_VISIBLE_DEVICES"], seen["OMP_NUM_THREADS"]) == ("2", "3", None)
    shell.environ["CUDA_VISIBLE_DEVICES"] = "0"
    assert json.loads(shell.stoker("run").stdout)["CUDA_VISIBLE_DEVICES"] == "0"


def test_variables_of_the_command_line_and_of_a_file_reach_the_script_and_secrets_only_as_such(shell: Shell) -> None:
    shell.write("train.py", SHOW)
    shell.write("more.vars", f"FROM_FILE='a b'\nSEED=1\nHF_TOKEN={TOKEN}\n")
    shell.job("python train.py", env_file="more.vars", env={"SEED": "2"})
    refused = shell.stoker("run", code=2)
    assert "more.vars:3" in refused.stderr and "secrets:" in refused.stderr and TOKEN not in refused.stderr
    shell.environ["EDITOR"] = "vi"
    options = ["--env", "EDITOR", "--env", "SEED=3", "--set", "secrets=[HF_TOKEN]"]
    done = shell.stoker("run", *options)
    assert json.loads(done.stdout) == {
        "OMP_NUM_THREADS": None,
        "CUDA_VISIBLE_DEVICES": None,
        "SEED": "3",
        "FROM_FILE": "a b",
        "HF_TOKEN": "*" * len(TOKEN),
        "EDITOR": "vi",
    }
    assert (shell.folder / "outputs/job-1/has-token").read_text() == "True"
    for wrong, said in (("HF_TOKEN", "not set in your shell"), (f"HF_TOKEN={TOKEN}", "secret"), ("1=2", "NAME=VALUE")):
        told = shell.stoker("run", "--env", wrong, code=2)
        assert said in told.stderr and TOKEN not in told.stderr
    _assert_nowhere(shell.home, TOKEN)


def _assert_nowhere(home: Path, secret: str) -> None:
    held = [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert not held
