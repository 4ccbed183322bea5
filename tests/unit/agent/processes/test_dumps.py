"""Stacks as other programs write them, and what a report may hold of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.agent.processes.stacks import SourceLines, of_faulthandler, of_py_spy, training_first
from stoker.agent.shipping.logs import Masking
from stoker.model.run.stacks import StackFrame, ThreadStack, collective, own, waits_in


def source(tmp_path: Path, text: str = "import time\ntime.sleep(9)  # hunter2hunter2\n") -> SourceLines:
    (tmp_path / "train.py").write_text(text)
    return SourceLines(tmp_path, Masking(["hunter2hunter2"]).text)


def test_faulthandlers_main_thread_comes_first_with_lines_of_the_runs_own_code(tmp_path: Path) -> None:
    text = f"""Thread 0x00007f0000000001 (most recent call first):
  File "/opt/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{tmp_path}/train.py", line 2 in <module>
"""
    main, other = of_faulthandler(text, source(tmp_path))
    assert main.name == "main thread"
    assert main.frames == (
        StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 3252),
        StackFrame("<module>", "train.py", 2, "time.sleep(9) # **************"),
    )
    assert (other.name, other.frames[0].file) == ("thread 0x00007f0000000001", "threading.py")


def test_py_spys_main_thread_comes_first(tmp_path: Path) -> None:
    frames = [{"name": "main", "filename": f"{tmp_path}/train.py", "line": 2}]
    said = [
        {"thread_id": 1, "thread_name": "pin", "frames": []},
        {"thread_id": 2, "thread_name": "MainThread", "frames": frames},
    ]
    found = of_py_spy(json.dumps(said), source(tmp_path))
    assert [(one.name, len(one.frames)) for one in found] == [("main thread", 1), ("pin", 0)]
    assert found[0].frames[0].code.startswith("time.sleep(9)")


@pytest.mark.parametrize("text", ["", "Error: Permission denied", "{}", "[1]"])
def test_what_is_not_a_dump_of_py_spy_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        of_py_spy(text, source(tmp_path))


def test_the_worker_that_reads_comes_before_threads_that_only_wait() -> None:
    """Of a rank with many workers not all stacks are kept."""

    def stack(name: str, *files: str) -> ThreadStack:
        return ThreadStack(name, tuple(StackFrame("f", file, 1) for file in files))

    worker = "torch/utils/data/_utils/worker.py"
    main = stack("main thread of process 1", "torch/utils/data/dataloader.py", "train.py")
    idle = [stack(f"main thread of process {pid}", "multiprocessing/queues.py", worker, "train.py") for pid in (2, 3)]
    feeds = [stack(f"thread 0x1 of process {pid}", "threading.py") for pid in range(20)]
    reads = stack("main thread of process 9", "train.py", "torch/utils/data/_utils/fetch.py", worker, "train.py")
    assert training_first([main, *feeds, *idle, reads])[:2] == [main, reads]


def test_files_outside_of_the_working_directory_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("key = 1\n")
    (tmp_path / "work").mkdir()
    lines = SourceLines(tmp_path / "work", str)
    assert lines.frame("f", f"{tmp_path}/secret.py", 1).code == ""
    assert lines.frame("f" * 999, "x/" * 999, -5).line == 0


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([("all_gather", "torch/distributed/distributed_c10d.py"), ("all_gather_object", "torch/distributed/x.py")],
         "all_gather_object"),
        ([("_store_based_barrier", "torch/distributed/distributed_c10d.py"),
          ("init_process_group", "torch/distributed/distributed_c10d.py")], "init_process_group"),
        ([("sync_global_devices", "jax/experimental/multihost_utils.py")], "sync_global_devices"),
        ([("all_reduce", "tensorflow/python/ops/collective_ops.py")], "all_reduce"),
        ([("barrier", "train.py")], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_a_collective_is_named_as_its_caller_names_it(frames: list[tuple[str, str]], name: str) -> None:
    assert collective([StackFrame(function, file, 1) for function, file in frames]) == name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("comm.Allreduce(x, y)", "Allreduce"),
        ("comm.bcast(model, root=0)", "bcast"),
        ("hvd.allreduce(loss)", "allreduce"),
        ("functools.reduce(add, xs)", ""),
        ("data = sock.recv(4096)", ""),
    ],
)
def test_extension_modules_are_known_by_the_line_that_calls_them(code: str, name: str) -> None:
    assert collective([StackFrame("main", "train.py", 3, code)]) == name


def test_the_backward_pass_waits_only_where_nothing_computes() -> None:
    frames = [
        StackFrame("backward", "torch/autograd/__init__.py", 3),
        StackFrame("main", "train.py", 9, "l.backward()"),
    ]
    assert (collective(frames), waits_in(frames)) == ("", "backward")
    assert own(frames) == frames[1]
