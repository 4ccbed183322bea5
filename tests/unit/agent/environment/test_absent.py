from __future__ import annotations

from typing import Any

import pytest

from stoker.agent.environment.python import hint
from stoker.model.job.job import Environment, Job
from stoker.model.orders import Orders

LOST = b"Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'sklearn.svm'\n"


def orders(own: str = "", **environment: Any) -> Orders:
    job = Job(name="x", run="python x.py", environment=Environment(**environment))
    return Orders("id", "x-1", 1, 0, "key", job, "snapshot", own)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (orders(), "add the line `environment: {packages: [scikit-learn]}` to the job file"),
        (orders(packages=["six"]), "`environment: {packages: [six, scikit-learn]}`"),
        (orders(packages="none"), "it is not installed because of `packages: none` in the job file"),
        (orders(requirements="requirements.txt"), "add the line `scikit-learn` to `requirements.txt`"),
        (orders("/venv/bin/python"), "install it with `/venv/bin/python -m pip install scikit-learn`"),
        (orders(python="/usr/bin/python3"), "which `/usr/bin/python3` on the node lacks"),
    ],
)
def test_a_missing_module_is_named_with_its_package_and_the_line_that_brings_it(given: Orders, said: str) -> None:
    told = hint(LOST, given)
    assert told.startswith("`sklearn.svm` is in the package `scikit-learn`")
    assert said in told


@pytest.mark.parametrize("tail", [b"", b"ValueError: No module named 'x'", b"print ModuleNotFoundError"])
def test_other_ends_have_no_such_hint(tail: bytes) -> None:
    assert hint(tail, orders()) == ""


def test_a_module_that_may_be_code_of_ones_own_is_not_only_said_to_be_a_package() -> None:
    own = "; if it is your own code, `stoker plan` shows whether it is uploaded"
    assert hint(b"ModuleNotFoundError: No module named 'helper'", orders("/venv/bin/python")).endswith(own)
    assert own not in hint(LOST, orders("/venv/bin/python"))


def test_the_last_of_several_counts_and_ranks_may_be_named() -> None:
    tail = b"ModuleNotFoundError: No module named 'a'\n[rank0]: ModuleNotFoundError: No module named 'my_pkg'\n"
    assert hint(tail, orders()).startswith("`my_pkg` is in the package `my-pkg`")
