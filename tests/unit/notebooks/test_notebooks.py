"""Notebooks as scripts: what happens to magics, what the copy contains, and how a command line starts one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.client.script.opened import missing
from stoker.client.script.starter import propose
from stoker.client.source.tree import scan
from stoker.errors import BadInput
from stoker.model.job.commandline import commands, with_notebooks
from stoker.model.job.job import Job
from stoker.notebooks.document import Document, NotebookUnreadable, Unsupported, as_python
from stoker.notebooks.running import Outputs, add_text, bundle


def notebook(*cells: str, **more: Any) -> str:
    code = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": ["old"]} for cell in cells]
    text = {"cell_type": "markdown", "source": ["# a title"], "metadata": {}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [text, *code], **more})


def run(folder: Path, *cells: str, arguments: tuple[str, ...] = (), **more: Any) -> tuple[Any, list[Outputs]]:
    (folder / "train.ipynb").write_text(notebook(*cells, **more))
    command = [sys.executable, "-m", "stoker.notebooks", "train.ipynb", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    copy = folder / "outputs" / "train.ipynb"
    written = json.loads(copy.read_text())["cells"][1:] if copy.exists() else []
    return done, [cell["outputs"] for cell in written]


def test_cells_run_in_one_namespace_and_their_outputs_are_in_the_copy(tmp_path: Path) -> None:
    done, outputs = run(
        tmp_path,
        "import sys\nsys.stdout.reconfigure(line_buffering=True)\nprint('one', sys.argv)\nclass Net: pass",
        "import pickle\npickle.loads(pickle.dumps(Net)) is Net",
        "print('err', file=sys.stderr); 5;",
        "async def late():\n    return 7\nawait late()",
        "__name__",
        arguments=("--epochs", "3"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "one ['train.ipynb', '--epochs', '3']\nTrue\n7\n'__main__'\n" and done.stderr == "err\n"
    assert outputs[0] == [{"output_type": "stream", "name": "stdout", "text": "one ['train.ipynb', '--epochs', '3']\n"}]
    assert outputs[1][0]["data"] == {"text/plain": "True"} and outputs[1][0]["execution_count"] == 2
    assert [one["name"] for one in outputs[2]] == ["stderr"]
    assert outputs[3][0]["data"] == {"text/plain": "7"}


def test_a_cell_that_fails_is_shown_with_its_own_lines_and_the_rest_does_not_run(tmp_path: Path) -> None:
    done, outputs = run(tmp_path, "def f():\n    return 1 / 0", "print('before')\nf()", "print('never')")
    assert done.returncode == 1 and done.stdout == "before\n"
    assert 'File "train.ipynb[2]", line 2' in done.stderr and "return 1 / 0" in done.stderr
    assert "running.py" not in done.stderr
    assert outputs[1][-1]["ename"] == "ZeroDivisionError" and outputs[2] == []


def test_secrets_that_a_cell_prints_are_stars_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'qu"ote-and-more'
    for name, value in {"STOKER_SECRETS": "KEY GONE PIN", "KEY": secret, "PIN": "1"}.items():
        monkeypatch.setenv(name, value)
    done, outputs = run(tmp_path, "import os\nprint('a', os.environ['KEY'], 1)", "raise ValueError(os.environ['KEY'])")
    assert done.returncode == 1 and secret in done.stdout, "the log is masked by whoever ships it"
    assert outputs[0][0]["text"] == f"a {'*' * len(secret)} 1\n"
    assert (
        secret not in json.dumps(outputs)
        and json.dumps(secret)[1:-1] not in (tmp_path / "outputs/train.ipynb").read_text()
    )


def test_a_notebook_that_exits_ends_with_its_code(tmp_path: Path) -> None:
    done, outputs = run(tmp_path, "print(1)", "import sys; sys.exit(4)")
    assert done.returncode == 4 and outputs[0][0]["text"] == "1\n"


def test_usual_magics_and_shell_lines_work_without_ipython(tmp_path: Path) -> None:
    done, outputs = run(
        tmp_path,
        "%matplotlib inline\n%load_ext autoreload\n%autoreload 2\n%env SEED=7\nname = 'ann'",
        "!echo hello {name} $name $SEED\nlines = !printf 'a\\nb\\n'\nprint(lines)",
        "%%writefile helper.py\nVALUE = 5 % 3",
        "%%time\nimport helper\nhelper.VALUE",
        "%%bash\necho from bash $SEED\nexit 3",
        "!pip install -q pytest 'click>=8'\nx = 7 \\\n% 4\nx",
        "!echo one \\\n    two \\\n  {name}\nprint(1 / 1)",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["hello ann ann 7", "['a', 'b']", "2"] and lines[3].startswith("Wall time")
    assert lines[4:] == ["from bash 7", "3", "one two ann", "1.0"] and "[exit code 3]" in done.stderr
    assert outputs[1][0]["text"] == "hello ann ann 7\n['a', 'b']\n"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("!pip install no-such-package-xyz", "requirements.txt"),
        ("%pip install no-such-package-xyz", "no-such-package-xyz not installed"),
        ("!conda install -y pytorch", "environment: requirements.txt"),
        ("%%R\nplot(1)", "requires IPython"),
        ("x = 1\n%prun f()", "jupyter nbconvert"),
        ("for x in range(3)\n    pass", "SyntaxError"),
    ],
)
def test_what_a_run_cannot_carry_out_is_reported_before_anything_runs(tmp_path: Path, cell: str, said: str) -> None:
    done, outputs = run(tmp_path, "print('never')", cell)
    assert done.returncode == 2 and done.stdout == "" and outputs == []
    assert "train.ipynb, cell 2" in done.stderr and said in done.stderr


def test_a_command_over_several_lines_leaves_the_lines_below_where_they_are() -> None:
    assert as_python("!echo a \\\n b\nx").split("\n")[1:] == ["", "x"]
    assert as_python("if y:\n    !echo a \\\n b\nx").split("\n")[2:] == ["", "x"]


def test_lines_that_only_look_like_magics_stay_as_they_are() -> None:
    for source in ('"""\n%matplotlib inline\n!ls\n"""', "x = (10\n     %3)", "a = b = '%s'\\\n% 3"):
        assert as_python(source) == source
    with pytest.raises(Unsupported):
        as_python("%lsmagic")


def test_tags_of_cells_are_obeyed(tmp_path: Path) -> None:
    cells = json.loads(notebook("1/0", "raise SystemExit(9)", "print('end')"))["cells"]
    cells[1]["metadata"] = {"tags": ["raises-exception"]}
    cells[2]["metadata"] = {"tags": ["skip-execution"]}
    done, _ = run(tmp_path, cells=cells)
    assert done.returncode == 0 and done.stdout == "end\n" and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "not a notebook"),
        ("[1, 2", "not a notebook"),
        ('{"worksheets": [], "nbformat": 3}', "old format"),
        ('{"cells": [{"cell_type": "code"}]}', "not a notebook"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "only Python"),
    ],
)
def test_what_is_no_python_notebook_is_refused_with_a_message(text: str, said: str) -> None:
    with pytest.raises(NotebookUnreadable, match=said):
        Document(text.encode(), "x.ipynb")


@pytest.mark.parametrize("metadata", [[], "x", {"kernelspec": []}, {"kernelspec": None}, None])
def test_metadata_of_any_shape_is_a_notebook_of_python(metadata: object) -> None:
    assert Document(json.dumps({"cells": [], "metadata": metadata}).encode(), "x.ipynb").cells == []


def test_a_progress_bar_is_one_line_in_the_copy_and_a_flood_is_cut() -> None:
    outputs: Outputs = []
    for percent in range(0, 101, 25):
        add_text(outputs, "stderr", f"\r{percent}%")
    add_text(outputs, "stderr", "\ndone\r\n")
    assert outputs == [{"output_type": "stream", "name": "stderr", "text": "100%\ndone\n"}]
    add_text(outputs, "stdout", "first\n")
    for _ in range(40):
        add_text(outputs, "stdout", "x" * 99_999 + "\n")
    text = outputs[1]["text"]
    assert len(text) < 1_200_000 and text.startswith("first\n") and text.count("omitted") == 1


def test_a_value_is_shown_in_the_forms_that_it_offers() -> None:
    class Table:
        def __repr__(self) -> str:
            return "table"

        def _repr_html_(self) -> str:
            return "<b>table</b>"

        def _repr_png_(self) -> bytes:
            raise OSError

    assert bundle(Table()) == {"text/plain": "table", "text/html": "<b>table</b>"}


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("train.ipynb --epochs 3", "python -m stoker.notebooks train.ipynb --epochs 3"),
        ("python train.ipynb", "python -m stoker.notebooks train.ipynb"),
        ("A=1 python3.12 -u 'my nb.ipynb' > x", "A=1 python3.12 -u -m stoker.notebooks 'my nb.ipynb' > x"),
        ("python a.py && nb/b.ipynb; echo", "python a.py && python -m stoker.notebooks nb/b.ipynb; echo"),
        ("jupyter nbconvert --execute train.ipynb", "jupyter nbconvert --execute train.ipynb"),
        ("python convert.py train.ipynb", "python convert.py train.ipynb"),
    ],
)
def test_a_command_that_names_a_notebook_as_its_script_runs_it(line: str, started: str) -> None:
    assert with_notebooks(line) == started


def test_the_script_of_a_command_may_be_a_notebook() -> None:
    assert [one.script for one in commands("train.ipynb --a && python b.ipynb")] == ["train.ipynb", "b.ipynb"]


TRAINS = "import torch\n!nvidia-smi\nmodel.fit(x)", "torch.save(model, 'out/model.pt')\nopen('data.csv')"


def test_init_proposes_a_notebook_that_trains_where_no_script_does(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(*TRAINS))
    (tmp_path / "utils.py").write_text("def f(): pass\n")
    found = propose(tmp_path)
    assert found.script == "train.ipynb" and "\nrun: train.ipynb\n" in found.text and "out" in found.text


def test_a_notebook_in_a_folder_writes_from_there(tmp_path: Path) -> None:
    (tmp_path / "nb").mkdir()
    (tmp_path / "nb/train.ipynb").write_text(notebook(*TRAINS))
    text = propose(tmp_path, Path("nb/train.ipynb")).text
    assert "run: nb/train.ipynb" in text and "nb/out" in text
    with pytest.raises(BadInput, match="notebook"):
        (tmp_path / "broken.ipynb").write_text(notebook("for"))
        propose(tmp_path, Path("broken.ipynb"))


def test_what_a_notebook_opens_and_a_run_would_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "nb").mkdir()
    (tmp_path / "nb/train.ipynb").write_text(notebook(*TRAINS))
    (tmp_path / "nb/data.csv").write_text("1\n")
    (tmp_path / ".gitignore").write_text("*.csv\n")
    job = Job.read({"name": "n", "run": "nb/train.ipynb"})
    assert "`nb/data.csv`" in missing(job, scan(tmp_path))[0]
