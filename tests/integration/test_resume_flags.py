"""Scripts that resume only with a flag, and whose checkpoint is a file next to them."""

from __future__ import annotations

import re

import pytest
from shell import Shell

IMAGENET = """
    import argparse, os, pathlib, shutil, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--resume", default="", type=str)
    args = parser.parse_args()
    first = 0
    if args.resume:
        if os.path.isfile(args.resume):
            first = int(open(args.resume).read())
            print("=> loaded checkpoint", os.path.basename(args.resume), flush=True)
        else:
            print("=> no checkpoint found at", args.resume, flush=True)
    print("from", first, flush=True)
    for epoch in range(first, args.epochs):
        time.sleep(0.05)
        while epoch == 6 and not pathlib.Path(WAITS_FOR).exists():
            time.sleep(0.05)
        with open("checkpoint.pth.tar", "w") as file:
            file.write(str(epoch + 1))
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
        print("done", epoch + 1, flush=True)
"""


def printed(shell: Shell, attempt: int, word: str) -> list[int]:
    log = shell.stoker("logs", "job-1", "--attempt", str(attempt), code=None).stdout
    return [int(one) for one in re.findall(rf"^{word} (\d+)$", log, re.M)]


@pytest.mark.timeout(120)
def test_a_checkpoint_that_is_a_file_is_given_to_the_resume_flag_after_an_eviction(shell: Shell) -> None:
    """The script waits in its seventh epoch until it was evicted, however busy the computer is."""
    evicted = shell.folder.parent / "evicted"
    shell.write("train.py", IMAGENET.replace("WAITS_FOR", repr(str(evicted))))
    named = ["checkpoint.pth.tar", "model_best.pth.tar"]
    run = "python train.py && echo over"
    shell.job(run, checkpoints=named, resume="--resume ${checkpoint.newest}")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: printed(shell, 1, "done")[-1:] >= [6], "six epochs")
    shell.stoker("evict", "job-1", "--notice", "1s")
    shell.wait_for(lambda: printed(shell, 2, "from"), "the next attempt")
    evicted.touch()
    assert shell.ended("job-1")["state"] == "succeeded"
    log = shell.stoker("logs", "job-1", "--attempt", "2").stdout
    assert "=> loaded checkpoint checkpoint.pth.tar" in log and "over" in log
    assert printed(shell, 2, "from") == [6], log
    assert "loaded checkpoint" not in shell.stoker("logs", "job-1", "--attempt", "1").stdout
    assert "resume from `checkpoint.pth.tar`" in shell.stoker("show", "job-1").stdout
