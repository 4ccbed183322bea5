"""Outputs of a run that is interrupted: what was written before counts, as if nothing had happened."""

import hashlib
import signal
import subprocess

import pytest
from agentnode import RUN, Node, eventually

from stoker.model.run.report import Outcome
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import load
from stoker.model.workspace import layout

# Writes an output each epoch, then the checkpoint that continues after it. Waits at the end of an epoch to be killed.
EPOCHS = """\
import os, pathlib, sys, time
wait_at = int(sys.argv[1])
state = pathlib.Path("checkpoints/state")
begun = int(state.read_text()) if state.exists() else 0
print("begins at", begun, flush=True)
for epoch in range(begun + 1, 7):
    pathlib.Path(f"outputs/models/{epoch}").parent.mkdir(exist_ok=True)
    pathlib.Path(f"outputs/models/{epoch}").write_text(f"model {epoch}")
    with open("outputs/log.csv", "a") as log: log.write(f"{epoch}\\n")
    pathlib.Path("checkpoints/part").write_text(str(epoch))
    os.replace("checkpoints/part", state)
    print("epoch", epoch, flush=True)
    if epoch == wait_at: time.sleep(600)
"""
ALL = {**{f"models/{epoch}": f"model {epoch}".encode() for epoch in range(1, 7)}, "log.csv": b"1\n2\n3\n4\n5\n6\n"}


def killed_at(node: Node, epoch: int, attempt: int) -> None:
    """Like a machine that is evicted without notice, as soon as the checkpoint of the epoch is in the store."""
    node.folder = node.root / f"node-{attempt}"
    node.order(f"python train.py {epoch}", {"train.py": EPOCHS, "outputs/.keep": ""}, attempt=attempt)
    agent = node.start()
    eventually(lambda: f"epoch {epoch}\n".encode() in node.log(), f"epoch {epoch}")
    eventually(lambda: holds(node, epoch), "its commit")
    node.kill()
    agent.wait()


def holds(node: Node, epoch: int) -> bool:
    """Whether a checkpoint of the epoch can be seen."""
    wanted = hashlib.sha256(b"%d" % epoch).hexdigest()
    sets = [load(CheckpointSet, node.store.get(one.key)) for one in node.store.list(layout.checkpoint_sets(RUN))]
    return any(entry.sha256 == wanted for one in sets for entry in one.entries)


def test_outputs_of_attempts_that_were_killed_are_all_there_at_the_end(node: Node) -> None:
    killed_at(node, 2, attempt=1)
    killed_at(node, 4, attempt=2)
    node.folder = node.root / "node-3"
    report = node.run("python train.py 0", {"train.py": EPOCHS, "outputs/.keep": ""}, attempt=3)
    assert report.outcome is Outcome.SUCCEEDED
    assert node.log().splitlines()[0] == b"begins at 4"
    assert node.outputs() == {**ALL, ".keep": b""}
    assert report.output_files == len(ALL) + 1


def test_outputs_that_were_restored_are_not_sent_again(node: Node) -> None:
    killed_at(node, 2, attempt=1)
    sent = {one.key: one.changed_at for one in node.store.list(f"runs/{RUN}/outputs")}
    node.folder = node.root / "node-2"
    node.run("python train.py 0", {"train.py": EPOCHS}, attempt=2)
    now = {one.key: one.changed_at for one in node.store.list(f"runs/{RUN}/outputs")}
    model = next(key for key in sent if node.store.get(key) == b"model 1")
    assert now[model] == sent[model]


def test_a_script_that_begins_from_nothing_finds_no_outputs(node: Node) -> None:
    node.order("echo one > outputs/a; sleep 600")
    agent = node.start()
    eventually(lambda: node.outputs() == {"a": b"one\n"}, "the output")
    node.kill()
    agent.wait()
    node.folder = node.root / "node-2"
    node.run("ls outputs; echo two > outputs/b", attempt=2)
    assert (node.log(), node.outputs()) == (b"", {"b": b"two\n"})


def test_lost_outputs_are_reported_and_the_script_continues(node: Node) -> None:
    killed_at(node, 2, attempt=1)
    for one in list(node.store.list(f"runs/{RUN}/outputs")):
        if node.store.get(one.key) == b"model 1":
            node.store.put(one.key, b"model X")
    node.folder = node.root / "node-2"
    report = node.run("python train.py 0", {"train.py": EPOCHS}, attempt=2)
    assert report.outcome is Outcome.SUCCEEDED
    [told] = node.events("outputs-lost")
    assert "models/1" in told
    assert node.outputs()["models/6"] == b"model 6"


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_metrics_in_event_files_that_were_restored_are_not_reported_twice(node: Node, by: signal.Signals) -> None:
    """TensorBoard's own writer, each attempt with a file of its own."""
    script = """
        import pathlib, sys, time
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        attempt = int(sys.argv[1])
        writer = EventFileWriter("outputs")
        writer.add_event(Event(step=attempt, summary=Summary(value=[Summary.Value(tag="loss", simple_value=attempt)])))
        writer.flush()
        pathlib.Path("checkpoints/state").write_text(str(attempt))
        print("saved", flush=True)
        if attempt == 1: time.sleep(600)
        """
    node.order("python train.py 1", {"train.py": script})
    agent = node.start()
    eventually(lambda: b"saved" in node.log() and holds(node, 1), "the commit")
    eventually(lambda: any("tfevents" in name for name in node.outputs()), "the event file")
    node.kill() if by is signal.SIGKILL else subprocess.run(["kill", str(agent.pid)], check=True)
    agent.wait()
    node.folder = node.root / "node-2"
    report = node.run("python train.py 2", {"train.py": script}, attempt=2)
    assert report.metrics["loss"].count == 1
    assert sum("tfevents" in name for name in node.outputs()) == 2
