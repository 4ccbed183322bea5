from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.client.software.choosing import starts_of
from stoker.client.software.installed import imports_in, imports_of
from stoker.model.job.job import Job


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def found(root: Path, script: str = "train.py") -> dict[str, bool]:
    """Module to whether the script cannot begin without it."""
    return {one.name: one.needed for one in imports_of([root / script], [(root / script).parent], root)}


def test_a_script_and_the_modules_of_its_own_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "import os, torch\nfrom lib import net\nfrom lib.deep.loss import mse\nimport utils.data\n",
            "lib/__init__.py": "import yaml",
            "lib/net.py": "from . import blocks\nfrom .deep import extra",
            "lib/blocks.py": "import einops",
            "lib/deep/__init__.py": "",
            "lib/deep/loss.py": "from ..blocks import x\nimport scipy.special",
            "lib/deep/extra.py": "import timm",
            "utils/data.py": "import PIL.Image",  # a folder without __init__.py
            "unused.py": "import never",
        },
    )
    assert set(found(tmp_path)) == {"torch", "yaml", "einops", "scipy.special", "timm", "PIL.Image"}


def test_what_a_script_can_do_without_is_not_needed(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING
import importlib
import numpy
try:
    import apex
except ImportError:
    import fallback
try:
    import used
finally:
    pass
if TYPE_CHECKING:
    import pandas
def late():
    import wandb
importlib.import_module("tensorboard")
importlib.import_module(name)
__import__("x y")
"""
    write(tmp_path, {"train.py": text})
    expected = {"numpy": True, "used": True, "apex": False, "fallback": False, "wandb": False, "tensorboard": False}
    assert found(tmp_path) == expected


def test_a_folder_of_data_does_not_hide_a_package_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "from datasets import load_dataset", "datasets/prepare.py": ""})
    assert list(found(tmp_path)) == ["datasets.load_dataset"]


def test_modules_that_import_each_other_and_broken_ones_come_to_an_end(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import a, broken", "a.py": "import b", "b.py": "import a, six", "broken.py": "def ("})
    assert list(found(tmp_path)) == ["six"]


def test_the_code_of_a_notebook_is_read_without_its_magic(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["import nothing"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install x\n", "import torch\n"]},
        {"cell_type": "code", "source": "import numpy as np"},
    ]
    write(tmp_path, {"train.ipynb": json.dumps({"cells": cells})})
    assert set(found(tmp_path, "train.ipynb")) == {"torch", "numpy"}


def test_a_notebook_is_read_whatever_else_is_in_it(tmp_path: Path) -> None:
    texts = ["%%bash\nls *.csv | wc -l", "%%R\nx <- 1", "!pip install -q \\\n   torch\nimport torch", "import timm"]
    cells = [{"cell_type": "code", "source": text, "outputs": ["x" * 2_000_000]} for text in texts]
    write(tmp_path, {"train.ipynb": json.dumps({"cells": cells}), "list.ipynb": "[1]", "none.ipynb": "{}"})
    assert set(found(tmp_path, "train.ipynb")) == {"torch", "timm"}
    assert not found(tmp_path, "list.ipynb") and not found(tmp_path, "none.ipynb")


def test_code_on_the_command_line_is_read_too(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": "import einops"})
    assert {one.name for one in imports_in("import torch, os; import net", "the command", [tmp_path])} == {
        "torch",
        "einops",
    }


PROJECT = {
    "train.py": "",
    "run.sh": "#!/bin/bash\nset -e\npython prepare.py &&\\\n  torchrun --nproc 2 train.py --x 1\n",
    "prepare.py": "",
    "pkg/__init__.py": "",
    "pkg/main.py": "",
    "tests/test_x.py": "",
    "setup.py": "",
}


@pytest.mark.parametrize(
    ("run", "files", "modules"),
    [
        ("python train.py", ["train.py"], []),
        ("cd . && FOO=1 python -u train.py | tee log", ["train.py"], []),
        ("torchrun --nproc_per_node 2 train.py", ["train.py"], []),
        ("python -m torch.distributed.run train.py", ["train.py"], ["torch.distributed.run"]),
        ("python -m pkg.main", ["pkg/__init__.py", "pkg/main.py"], []),
        ("bash run.sh", ["prepare.py", "train.py"], []),
        ("bash -c 'python train.py'", ["train.py"], []),
        ("echo hello; sleep 3", [], []),
        ("accelerate launch train.py", ["train.py"], []),
    ],
)
def test_what_a_command_starts_is_found(tmp_path: Path, run: str, files: list[str], modules: list[str]) -> None:
    write(tmp_path, PROJECT)
    starts = starts_of(Job(name="x", run=run), tmp_path, PROJECT)
    assert sorted(one.relative_to(tmp_path).as_posix() for one in starts.files) == sorted(files)
    assert (list(starts.modules), starts.guessed) == (modules, False)


def test_of_a_program_that_nobody_knows_every_file_may_be_a_part(tmp_path: Path) -> None:
    write(tmp_path, PROJECT)
    starts = starts_of(Job(name="x", run="make train"), tmp_path, PROJECT)
    assert starts.guessed
    assert {one.name for one in starts.files} == {"train.py", "prepare.py", "__init__.py", "main.py"}
