"""Data next to the script that an ignore file excludes: reported by the plan, and added by one line."""

from __future__ import annotations

from shell import Shell

from stoker.model.cause import Cause

SCRIPT = """
    import os
    data_dir = os.path.join("data", "shakespeare")
    print(open(os.path.join(data_dir, "train.bin")).read())
"""


def test_ignored_data_is_named_by_the_plan_and_found_with_the_line_it_proposes(shell: Shell) -> None:
    shell.write("train.py", SCRIPT)
    shell.write("data/shakespeare/train.bin", "to be")
    shell.write("big.bin", "")
    with (shell.folder / "big.bin").open("wb") as file:
        file.truncate(101_000_000)
    shell.write(".gitignore", "data/\n")
    shell.job("python train.py")
    shown = " ".join(shell.stoker("plan").stdout.split())
    assert "uploading 101 MB as code: `big.bin` (101 MB)" in shown
    assert "`data/shakespeare/train.bin`, which train.py opens, is not uploaded: an ignore file excludes it" in shown
    assert "{shakespeare: {path: data/shakespeare, at: data/shakespeare}}" in shown
    (shell.folder / "big.bin").unlink()
    shell.job("python train.py", data={"shakespeare": {"path": "data/shakespeare", "at": "data/shakespeare"}})
    assert "is not uploaded" not in shell.stoker("plan").stdout
    assert shell.stoker("run").stdout == "to be\n"


def test_init_writes_the_lines_that_bring_data_which_would_not_be_sent(shell: Shell) -> None:
    shell.write("train.py", SCRIPT + '    print(open("../shared/words.txt").read())\n')
    shell.write("data/shakespeare/train.bin", "to be")
    shell.write("../shared/words.txt", "or not")
    shell.write(".gitignore", "data/\n")
    said = shell.stoker("init", "--force").stderr
    assert (
        "shakespeare: data/shakespeare" in said
        and "words: ../shared/words.txt" in said
        and "is not uploaded" not in said
    )
    assert shell.stoker("run").stdout == "to be\nor not\n"


def test_one_file_of_a_dataset_is_the_input_wherever_the_script_expects_it(shell: Shell) -> None:
    """As a single file of this computer becomes one for machines elsewhere, at the top of the source, too."""
    paths = "('train.bin', sys.argv[1], os.environ['STOKER_DATA_SET'])"
    shell.write("train.py", f"import os, sys\nprint(*(open(one).read() for one in {paths}))")
    shell.write("../elsewhere/tokens.bin", "words")
    shell.stoker("data", "put", "../elsewhere/tokens.bin", "--name", "tokens")
    data = {"set": {"dataset": "tokens", "file": "tokens.bin", "at": "train.bin"}}
    shell.job("python train.py ${data.set}", data=data)
    assert shell.stoker("run").stdout == "words words words\n"
    shell.job("python train.py ${data.set}", data={"set": {**data["set"], "file": "tokens.bim"}})
    shell.stoker("run", code=125)
    assert shell.facts("last")["cause"] == Cause.FILE_MISSING and "`tokens.bim`" in shell.facts("last")["reason"]
    shell.job("python train.py", data={"set": {"path": "train.py", "file": "x"}})
    [problem] = shell.refused("plan")["problems"]
    assert problem["field"] == "data.set.file"
