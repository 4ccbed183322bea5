"""`stoker certify` on small scripts that are each wrong in one way, and on one that is right, with real evictions."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

SCRIPTS = Path(__file__).parent / "certify_scripts"
# Evicts about half-way, clear of the moments at which these scripts save. They run for five seconds: shorter ones are
# done on a busy computer before an eviction takes effect.
SEED = "30"


def certified(shell: Shell, script: str, *more: str, code: int = 1, evictions: int = 1) -> dict[str, Any]:
    shutil.copy(SCRIPTS / script, shell.folder / "train.py")
    shell.job("python train.py")
    arguments = ("certify", "--json", "--seed", SEED, "--evictions", str(evictions), *more)
    done = shell.stoker(*arguments, code=code, patience_s=600.0 if more else 200.0)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_right_script_is_exact_and_leaves_nothing_behind(shell: Shell) -> None:
    found = certified(shell, "right.py", code=0, evictions=2)
    assert found["verdict"] == "exact", found
    assert len(found["evictions"]) >= 2
    assert any(one["notice_s"] > 0 for one in found["evictions"])
    assert found["files"] == ["weights.json"]
    assert found["steps"] == 40
    assert not (shell.folder / "outputs").exists()
    assert json.loads(shell.stoker("ps", "--json").stdout)["runs"] == []


def test_as_many_processes_are_certified_as_ranks_are_asked_for(shell: Shell) -> None:
    found = certified(shell, "right_on_ranks.py", "--ranks", "3", code=0)
    assert found["verdict"] == "exact", found
    assert found["files"] == [f"weights-{rank}-of-3.json" for rank in range(3)]


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_ranks_and_nodes_of_a_gang_are_killed_and_its_results_are_exact(shell: Shell) -> None:
    found = certified(shell, "right_on_ranks.py", "--ranks", "4", "--nodes", "2", code=0, evictions=4)
    assert found["verdict"] == "exact", found
    assert found["files"] == [f"weights-{rank}-of-4.json" for rank in range(4)]
    killed = {one["killed"].partition(" ")[0] for one in found["evictions"]}
    assert killed == {"", "rank", "node"}, found["evictions"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_ranks_of_distributed_data_parallel_are_exact(shell: Shell) -> None:
    found = certified(shell, "four_ranks.py", "--ranks", "4", code=0)
    assert found["verdict"] == "exact", found
    assert found["files"] == ["weights-0-of-4.json"]
    assert sorted(found["metrics"]) == ["loss", *(f"loss of rank {rank}" for rank in (1, 2, 3))]
    assert found["evictions"][0]["restored"], found


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "verdict", "reason"),
    [
        (
            "never_loads.py",
            "lossy",
            "starts at step 1 after every eviction: it saves to `checkpoints/` but does not load",
        ),
        ("saves_nothing.py", "lossy", "nothing was ever written to `checkpoints/`"),
        ("forgets_random_state.py", "inexact", "the random state is probably not saved"),
        ("forgets_data_order.py", "inexact", "the order of the data is probably not saved"),
        ("forgets_momentum.py", "inexact", "the optimizer's state (momentum) is probably not saved"),
        ("writes_in_place.py", "broken", "it probably loaded a truncated file"),
        ("never_the_same.py", "undecided", "not deterministic"),
    ],
)
def test_a_wrong_script_is_told_what_is_wrong(shell: Shell, script: str, verdict: str, reason: str) -> None:
    found = certified(shell, script)
    assert found["verdict"] == verdict, found
    assert reason in found["reason"]
    assert found["advice"]
    assert found["lines"]
    assert found["kept"][0] == "job-certify-1"


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_plain_script_is_advised_the_hook_and_is_exact_with_it(shell: Shell) -> None:
    found = certified(shell, "pickles_no_random_state.py")
    assert found["verdict"] == "inexact", found
    assert found["lines"][0].startswith("exact: true")
    assert any("checkpoints/weight.json: numbers differ" in one for one in found["details"]), found
    found = certified(shell, "pickles_no_random_state.py", "--set", "exact=true", code=0)
    assert found["verdict"] == "exact", found
    assert found["evictions"][0]["restored"], found


def test_people_get_a_report_that_ends_with_what_to_do(shell: Shell) -> None:
    shell.write("train.py", "print('no luck')\nraise SystemExit(3)\n")
    shell.job("python train.py")
    done = shell.stoker("certify", code=1)
    assert re.match(r"broken: .* code 3\n", done.stdout)
    assert "stoker logs job-certify-1" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("next: ")
    assert done.stderr.startswith("running it undisturbed; the runs with 5 evictions follow")
