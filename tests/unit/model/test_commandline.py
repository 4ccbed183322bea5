"""What a job's command line starts, and where the arguments of `resume` go."""

from __future__ import annotations

import pytest

from stoker.model.job.commandline import commands, with_resume


@pytest.mark.parametrize(
    ("line", "scripts"),
    [
        ("python train.py --lr 0.1", ["train.py"]),
        ("python3.11 -u -W ignore src/train.py", ["src/train.py"]),
        ("OMP_NUM_THREADS=1 exec python 'my train.py'", ["my train.py"]),
        ("python prepare.py && python train.py | tee log.txt", ["prepare.py", "train.py", ""]),
        ("cd src; python train.py > log 2>&1 &", ["", "train.py"]),
        ("torchrun --nproc_per_node 2 train.py --x 1", ["train.py"]),
        ("accelerate launch --mixed_precision no run.py", ["run.py"]),
        ("bash scripts/train.sh 3", ["scripts/train.sh"]),
        ("./train.sh", ["./train.sh"]),
        ('python -c "import train; train.main()"', [""]),
        ("python -m package.train --x", [""]),
        ("# nothing\npython train.py # a.py", ["train.py"]),
        ("python $SCRIPT", ["$SCRIPT"]),
        ("echo 'a && b' > x.py", [""]),
    ],
)
def test_the_script_of_each_command_is_found(line: str, scripts: list[str]) -> None:
    assert [command.script for command in commands(line)] == scripts


def test_the_module_of_a_command_is_found() -> None:
    assert [one.module for one in commands("python -u -m pkg.train && torchrun -m a.b && python x.py -m y")] == [
        "pkg.train",
        "a.b",
        "",
    ]


@pytest.mark.parametrize(
    ("line", "resumed"),
    [
        ("python train.py --lr 1", "python train.py --lr 1 --resume x"),
        ("python prepare.py && python train.py", "python prepare.py && python train.py --resume x"),
        ("python train.py 2>&1 | tee log", "python train.py --resume x 2>&1 | tee log"),
        ("python train.py > log; echo done", "python train.py --resume x > log; echo done"),
        ("python train.py && rm -r tmp", "python train.py --resume x && rm -r tmp"),
        ("pip install x && python -m pkg.train", "pip install x && python -m pkg.train --resume x"),
        ("python train.py && python -m pip freeze", "python train.py --resume x && python -m pip freeze"),
        ("bash train.sh", "bash train.sh --resume x"),
        ("(cd a && ./go.py)", "(cd a && ./go.py --resume x)"),
        ("python train.py  # a comment", "python train.py --resume x  # a comment"),
        (
            "python train.py \\\n  --lr 1 \\\n  --epochs 3\n",
            "python train.py \\\n  --lr 1 \\\n  --epochs 3 --resume x\n",
        ),
        ("python a.py ${resume} && python b.py", "python a.py --resume x && python b.py"),
        ("torchrun --nproc-per-node 2 train.py | cat", "torchrun --nproc-per-node 2 train.py --resume x | cat"),
        ('python -c "print(1)" "a > b; c"', 'python -c "print(1)" "a > b; c" --resume x'),
    ],
)
def test_the_arguments_of_resume_go_to_the_last_command_that_starts_python(line: str, resumed: str) -> None:
    assert with_resume(line, "--resume x") == resumed


def test_with_nothing_to_resume_from_the_line_is_as_it_was_written() -> None:
    assert with_resume("python a.py ${resume} && b", "") == "python a.py  && b"
    assert with_resume("python a.py", "") == "python a.py"


@pytest.mark.parametrize("line", ["", "'", '"a', "a\\", "$(", "${", "<", "& & |", "`x", "#", "a #\n"])
def test_a_line_that_is_not_understood_is_not_a_failure(line: str) -> None:
    commands(line)
    assert "x" in with_resume(line, "x")
