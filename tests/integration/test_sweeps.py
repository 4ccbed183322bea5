"""A user runs one job with many values: submits, watches, retries, extends and cancels them together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

SCRIPT = """
    import json, os, pathlib, sys
    lr, seed = float(sys.argv[1]), int(os.environ["STOKER_MATRIX_SEED"])
    print(json.dumps({"step": 1, "accuracy": lr + seed / 100}))
    if lr == 0.2 and seed == 2 and not pathlib.Path(os.environ["MARK"]).exists():
        sys.exit(3)
"""


ENDED = ("succeeded", "failed", "cancelled")


def swept(shell: Shell, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.stoker("sweep", *args, "--json").stdout)["sweep"]
    return found


def test_a_sweep_is_run_its_failed_trial_retried_and_more_values_added(shell: Shell, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    shell.write("train.py", SCRIPT)
    matrix = {"lr": [0.1, 0.2], "seed": "1..2"}
    shell.job("python train.py ${matrix.lr}", matrix=matrix, env={"MARK": str(mark)})
    assert "trials" in shell.stoker("plan").stdout

    done = shell.stoker("run", code=1)
    assert "3 of 4 trials succeeded, 1 failed" in done.stderr
    facts = shell.facts("job-4")
    assert facts["job"]["run"] == "python train.py 0.2" and facts["trial"]["values"] == {"lr": "0.2", "seed": "2"}

    shell.write("train.py", "raise SystemExit(9)")  # a retry has the code of the sweep
    mark.touch()
    assert "job-5" in shell.stoker("sweep", "retry").stderr
    assert shell.ended("job-5")["state"] == "succeeded" and shell.facts("job-5")["rerun_of"] == "job-4"
    state = swept(shell, "show", "job-s1")
    assert state["states"] == {"succeeded": 4} and state["runs"] == 5
    assert shell.refused("sweep", "retry")["code"] == "conflict"

    shell.stoker("sweep", "extend", "job-s1", "--matrix", "seed=2..3")
    assert [shell.facts(f"job-{number}")["trial"]["values"]["lr"] for number in (6, 7)] == ["0.1", "0.2"]
    assert {shell.ended(f"job-{number}")["state"] for number in (6, 7)} == {"succeeded"}
    assert swept(shell, "show", "job-s1")["states"] == {"succeeded": 6}


def test_hundreds_of_trials_wait_in_one_line_a_few_at_once_and_are_cancelled_together(shell: Shell) -> None:
    shell.write("train.py", "import time; time.sleep(600)")
    shell.job("python train.py", matrix={"seed": "1..500"}, max_parallel=1)
    assert shell.stoker("run", "-d").stdout == "job-s1\n"
    shell.wait_for(lambda: shell.facts("job-1")["state"] == "running", "the first trial runs")
    waiting = shell.facts("job-2")
    assert (waiting["state"], waiting["cause"]) == ("queued", Cause.MAX_PARALLEL)
    lines = shell.stoker("ps").stdout.splitlines()
    assert len(lines) == 3 and "499 queued" in lines[2]
    shell.kill_server()  # a sweep outlives its server
    assert swept(shell, "show")["states"] == {"running": 1, "queued": 499}
    shell.stoker("sweep", "cancel", "-y")
    shell.wait_for(lambda: swept(shell, "show")["states"] == {"cancelled": 500}, "all are cancelled")


def test_bad_input_is_told_before_anything_is_submitted(shell: Shell) -> None:
    shell.write("train.py", "pass")
    path = shell.write("stoker.yaml", "name: job\nrun: python train.py ${matrix.rate}\nmatrix:\n  rates: [1]\n")
    (problem,) = shell.refused("run")["problems"]
    assert (problem["line"], problem["field"], problem["nearest"]) == (2, "run", "matrix.rates")
    path.write_text("name: job\nrun: python train.py\nmatrix:\n  a: 1..1000\n  b: 1..1000\n")
    (problem,) = shell.refused("run")["problems"]
    assert (problem["field"], problem["found"], problem["line"]) == ("matrix", "1,000,000 trials", 4)
    path.write_text("name: job\nrun: python train.py\n")
    assert shell.refused("run", "--matrix", "a=1..2000")["cause"] == Cause.UNCONFIRMED
    assert shell.refused("run", "--matrix", "a=")["code"] == "bad-input"
    assert shell.refused("sweep", "show", "job")["cause"] == Cause.NO_SUCH_SWEEP
    assert json.loads(shell.stoker("ps", "--json").stdout)["runs"] == []


def test_results_are_a_table_plots_a_page_and_data(shell: Shell) -> None:
    shell.write("train.py", SCRIPT)
    shell.job("python train.py ${matrix.lr}", matrix={"lr": [0.1, 0.3], "seed": "1..2"}, env={"MARK": "-"})
    shell.stoker("run")
    lines = shell.stoker("results").stdout.splitlines()
    assert lines[0].split() == ["LR", "ACCURACY", "SPREAD", "RUNS", "TIME"]
    assert lines[1].split()[:2] == ["0.3", "0.315"] and lines[2].split()[:2] == ["0.1", "0.115"]
    groups = json.loads(shell.stoker("results", "job", "--by", "seed", "--json").stdout)["groups"]
    assert [one["values"] for one in groups] == [{"seed": "2"}, {"seed": "1"}] and len(groups[0]["runs"]) == 2
    rows = shell.stoker("results", "job", "--csv").stdout.splitlines()
    assert rows[0] == "run,state,sweep,lr,seed,accuracy,seconds,usd,nodes" and len(rows) == 5
    for plot in ("scatter", "box", "scaling", "parallel", "pareto"):
        assert shell.stoker("results", "job", "--plot", plot).stdout
    shell.stoker("results", "job", "--html", "job.html")
    assert "<svg" in (shell.folder / "job.html").read_text()
    assert shell.refused("results", "job", "--html", "none/job.html")["cause"] == Cause.FILE_UNWRITABLE
    assert shell.refused("results", "job", "--metric", "acuracy")["cause"] == Cause.NO_SUCH_METRIC
    assert shell.refused("results", "ants")["cause"] == Cause.NO_SUCH_RUN


def test_one_sweep_over_the_number_of_nodes_is_a_scaling_report(shell: Shell) -> None:
    shell.write("train.py", "import os, time; time.sleep(0.4 / int(os.environ.get('WORLD_SIZE', 1)))")
    shell.job("python train.py")
    assert "nodes" in shell.stoker("plan", "--matrix", "nodes=1,2").stdout
    shell.stoker("run", "--matrix", "nodes=1,2")
    assert [len(shell.facts(f"job-{number}")["attempts"][0]["peers"]) for number in (1, 2)] == [0, 1]
    assert "efficiency" in shell.stoker("results", "job", "--plot", "scaling").stdout.lower()
    shell.write("stoker.yaml", "name: job\nrun: python train.py\nnodes: ${matrix.nodes}\nmatrix:\n  nodes: [1, 0]\n")
    (problem,) = shell.refused("run")["problems"]
    assert (problem["line"], problem["field"]) == (3, "nodes")


EPOCHS = """
    import json, os, pathlib, signal, time
    seed, saved, stops = int(os.environ["STOKER_MATRIX_SEED"]), pathlib.Path("checkpoints/epoch"), []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
    epoch = int(saved.read_text()) if saved.exists() else 0
    while epoch < 27 and not stops:
        time.sleep(0.25)
        epoch += 1
        with open(os.environ["TRACE"], "a") as trace:
            trace.write(f"{seed} {epoch}\\n")
        part = saved.with_name("part")
        part.write_text(str(epoch))
        part.replace(saved)
        print(json.dumps({"epoch": epoch, os.environ["METRIC"]: 1 / (1 + abs(seed - 5))}), flush=True)
"""


@pytest.mark.heavy
def test_a_search_pauses_trials_at_rungs_resumes_the_best_and_finds_it_for_a_quarter(
    shell: Shell, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    shell.write("train.py", EPOCHS)
    search = {"by": "halving", "metric": "val_acc", "most": 27}
    env = {"TRACE": str(trace), "METRIC": "val_acc"}
    shell.job("python train.py", matrix={"seed": "1..9"}, search=search, env=env, max_parallel=2)
    assert "9 to 1, 3 to 3, 1 to 9, 1 to 27" in shell.stoker("plan").stdout
    shell.stoker("run", "-d")
    shell.wait_for(lambda: swept(shell, "show")["paused"] >= 3, "some trials are at the first rung")
    shell.kill_server()
    shell.wait_for(lambda: sum(swept(shell, "show")["states"].get(one, 0) for one in ENDED) == 9, "the search is over")
    state = swept(shell, "show")
    assert state["states"] == {"succeeded": 1, "cancelled": 8}
    assert [(one["at"], one["reached"]) for one in state["rungs"]] == [(1, 9), (3, 3), (9, 1), (27, 1)]
    assert shell.facts("job-5")["state"] == "succeeded" and {one["best"] for one in state["rungs"]} == {"job-5"}
    epochs = trace.read_text().split("\n")[:-1]
    assert len(set(epochs)) == len(epochs) <= 9 * 27 / 4  # none twice
    assert [one for one in epochs if one.startswith("5 ")] == [f"5 {number}" for number in range(1, 28)]  # none lost
    assert shell.facts("job-1")["cause"] == Cause.NOT_RESUMED
    assert "epoch 1 (rung 1 of 4)" in shell.stoker("explain", "job-5").stdout
    assert "epoch 1: 9 reached it, 3 resumed; best val_acc 1, job-5" in shell.stoker("sweep", "show").stdout
    assert shell.refused("sweep", "extend", "--matrix", "seed=10")["code"] == "conflict"


def test_a_search_by_a_metric_that_no_trial_reports_ends_in_words(shell: Shell, tmp_path: Path) -> None:
    shell.write("train.py", EPOCHS.replace("27", "2"))
    env = {"TRACE": str(tmp_path / "trace"), "METRIC": "accuracy"}
    search = {"by": "halving", "metric": "val_acc", "most": 27}
    shell.job("python train.py", matrix={"seed": "1..3"}, search=search, env=env, max_parallel=1)
    shell.stoker("run", code=1)
    first, last = shell.facts("job-1"), shell.facts("job-3")
    assert (first["state"], first["cause"]) == ("failed", Cause.METRIC_MISSING) and "`accuracy`" in first["reason"]
    assert (last["state"], last["attempts"]) == ("cancelled", [])
    (problem,) = shell.refused("run", "--set", "search.most=1")["problems"]
    assert problem["field"].endswith("search.most")
    (problem,) = shell.refused("run", "--set", "matrix=null")["problems"]
    assert problem["field"] == "search"


DRAWN = """
    import json, math, os, sys
    lr = float(sys.argv[1])
    print(json.dumps({"step": 1, os.environ["METRIC"]: (math.log10(lr) + 3) ** 2}))
    if "TOKEN" not in os.environ:
        sys.exit(4)
"""


def test_a_search_by_optuna_outlives_its_server_and_continues_with_more_draws(shell: Shell) -> None:
    shell.write("train.py", DRAWN)
    shell.environ["TOKEN"] = "t"
    matrix = {"lr": {"log_uniform": [1e-5, 1e-1]}, "draws": 6}
    search = {"by": "optuna", "metric": "-loss"}
    job = {"matrix": matrix, "search": search, "env": {"METRIC": "loss"}, "secrets": ["TOKEN"]}
    shell.job("python train.py ${matrix.lr}", max_parallel=2, **job)
    shell.stoker("run", "-d")
    shell.wait_for(lambda: swept(shell, "show")["sweep"]["trials"] > 2, "more trials are drawn")
    shell.kill_server()
    shell.wait_for(lambda: swept(shell, "show")["states"] == {"succeeded": 6}, "all are done")
    found = [shell.facts(f"job-{number}")["trial"] for number in range(1, 7)]
    assert len({one["values"]["lr"] for one in found}) == 6
    assert all(one["scores"] == [pytest.approx((math.log10(float(one["values"]["lr"])) + 3) ** 2)] for one in found)
    shell.stoker("sweep", "extend", "--matrix", "draws=8")
    shell.wait_for(lambda: swept(shell, "show")["states"] == {"succeeded": 8}, "two more are done")
    assert shell.refused("sweep", "extend", "--matrix", "draws=8")["code"] == "conflict"


def test_a_search_by_optuna_ends_where_no_trial_can_tell_anything(shell: Shell) -> None:
    shell.write("train.py", DRAWN)
    job = {"matrix": {"lr": {"log_uniform": [1e-5, 1e-1]}, "draws": 50}, "search": {"by": "optuna", "metric": "-loss"}}
    shell.job("python train.py ${matrix.lr}", env={"METRIC": "error", "TOKEN": "t"}, **job)
    assert "`error`" in shell.stoker("run", code=1).stderr
    assert shell.facts("job-1")["cause"] == Cause.METRIC_MISSING
    assert len(json.loads(shell.stoker("ps", "-a", "--json").stdout)["runs"]) <= 8
    shell.job("python train.py ${matrix.lr}", env={"METRIC": "loss"}, **job)
    shell.stoker("run", code=1)
    state = swept(shell, "show")
    assert state["sweep"]["stopped"] and state["sweep"]["trials"] < 15
