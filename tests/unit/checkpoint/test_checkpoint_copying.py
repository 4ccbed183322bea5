"""The copy that is made during training: complete when nothing interfered, and not used when something did."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stoker.checkpoint import Checkpoint  # noqa: E402
from stoker.errors import CheckpointRefused  # noqa: E402


def begin(folder: Path) -> tuple[Any, Any, Checkpoint]:
    model = torch.nn.Linear(400, 400)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, Checkpoint(model=model, optimizer=optimizer, every=1, folder=folder)


def learn(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_save_holds_the_weights_of_its_step_though_the_next_step_follows_at_once(tmp_path: Path) -> None:
    model, optimizer, state = begin(tmp_path)
    seen = []
    for _ in range(5):
        learn(model, optimizer)
        seen.append(model.weight.detach().clone())
        state.step()
    state.finish()
    for path in tmp_path.glob("step-*"):
        stored = Checkpoint.load_weights(path)["weight"]
        assert torch.equal(stored, seen[int(path.name[5:]) - 1])
    restored, _, again = begin(tmp_path)
    assert again.steps == 5
    assert torch.equal(restored.weight, seen[-1])


def test_large_tensors_and_buffers_are_copied_beside_the_next_step_and_are_those_of_their_step(tmp_path: Path) -> None:
    """Weights of 9 MB with two moments each, frozen ones beside them, and running means that the next forward pass
    changes before the optimizer does."""

    def build() -> tuple[Any, Any, Checkpoint]:
        model = torch.nn.Sequential(
            torch.nn.Linear(1500, 1500), torch.nn.BatchNorm1d(1500), torch.nn.Linear(1500, 1500)
        )
        model[2].requires_grad_(False)
        optimizer = torch.optim.Adam([*model[0].parameters(), *model[1].parameters()], 1e-2)
        return model, optimizer, Checkpoint(model=model, optimizer=optimizer, every=1, keep=9, folder=tmp_path)

    torch.manual_seed(0)
    model, optimizer, state = build()
    seen = []
    overlapped = 0
    for _ in range(4):
        model(torch.randn(3, 1500)).square().mean().backward()
        optimizer.step()
        moments = [one.clone() for slot in optimizer.state.values() for one in slot.values()]
        seen.append(({name: one.clone() for name, one in model.state_dict().items()}, moments))
        state.step()
        overlapped += state._saving._copying is not None
        model(torch.randn(3, 1500))
        state.finish()
    assert overlapped == 4
    for path in tmp_path.glob("step-*"):
        stored, (then, _) = Checkpoint.load_weights(path), seen[int(path.name[5:]) - 1]
        assert stored.keys() == then.keys()
        assert all(torch.equal(stored[name], then[name]) for name in then)
    _, again, resumed = build()
    assert resumed.steps == 4
    moments = [one for slot in again.state.values() for one in slot.values()]
    assert all(torch.equal(one, other) for one, other in zip(moments, seen[-1][1], strict=True))


def test_frozen_weights_changed_meanwhile_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).requires_grad_(False))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    state = Checkpoint(model=model, optimizer=optimizer, every="1h", folder=tmp_path)
    learn(model, optimizer)
    hand_over = state._saving._copier.hand
    held: list[Callable[[], None]] = []
    monkeypatch.setattr(state._saving._copier, "hand", held.append)  # a copier that is late
    state.steps += 1
    state.save()
    model[1].weight.add_(1.0)
    hand_over(held[0])
    learn(model, optimizer)
    state.finish()
    assert "changed between two steps" in capsys.readouterr().err
    assert list(tmp_path.glob("step-*")) == []
    state.step()
    state.finish()
    assert torch.equal(Checkpoint.load_weights(tmp_path / "step-000000002")["1.weight"], model[1].weight)


def test_a_learning_rate_that_is_changed_before_the_next_step_is_saved_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, state = begin(tmp_path)
    learn(model, optimizer)
    hand_over = state._saving._copier.hand
    held: list[Callable[[], None]] = []
    monkeypatch.setattr(state._saving._copier, "hand", held.append)
    state.step()
    optimizer.param_groups[0]["lr"] = 7.0
    hand_over(held[0])
    monkeypatch.undo()
    state.finish()
    _, again, _ = begin(tmp_path)
    assert again.param_groups[0]["lr"] == 0.1


def test_the_last_save_is_made_though_the_script_has_come_to_its_end(tmp_path: Path) -> None:
    script = f"""
import torch
from stoker.checkpoint import Checkpoint
def main():
    model = torch.nn.Linear(2000, 2000)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 2000)).sum().backward()
    optimizer.step()
    state = Checkpoint(model=model, optimizer=optimizer, every=1, folder={str(tmp_path)!r})
    state.step()
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000001"]


def test_a_script_that_ends_while_a_thread_is_within_pytorch_is_not_aborted() -> None:
    script = """
import time, torch
from stoker.checkpoint.save.writer import SaveThread
def work():
    for _ in range(20):
        torch.empty(20_000_000).zero_()
    print("done")
worker = SaveThread("beside")
worker.hand(work)
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_weights_changed_behind_the_optimizers_back_drop_the_save_and_the_next_step_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, state = begin(tmp_path)
    learn(model, optimizer)
    at_step_1 = model.weight.detach().clone()
    state.step()
    with torch.no_grad():
        model.weight.add_(1.0)
    learn(model, optimizer)
    state.step()
    state.finish()
    dropped = "changed between two steps" in capsys.readouterr().err
    assert (tmp_path / "step-000000001").exists() is not dropped  # it was written before the change, or not at all
    if not dropped:
        assert torch.equal(Checkpoint.load_weights(tmp_path / "step-000000001")["weight"], at_step_1)
    assert torch.equal(Checkpoint.load_weights(tmp_path / "step-000000002")["weight"], model.weight)


def test_tied_weights_channels_last_and_small_floats_come_back(tmp_path: Path) -> None:
    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(8, 8)
            self.two = torch.nn.Linear(8, 8)
            self.two.weight = self.one.weight
            self.register_buffer("image", torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
            self.register_buffer("brain", torch.randn(5, dtype=torch.bfloat16))
            self.register_buffer("slice", torch.randn(8, 8)[:, ::2])

    first = Net()
    state = Checkpoint(model=first, every=1, folder=tmp_path)
    state["kept"] = {"image": first.image, "tuple": (1, torch.float16), "numpy": torch.arange(3).numpy()}
    state.step()
    state.finish()
    second = Net()
    again = Checkpoint(model=second, every=1, folder=tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert again["kept"]["image"].stride() == first.image.stride()
    assert again["kept"]["tuple"] == (1, torch.float16)
    assert again["kept"]["numpy"].tolist() == [0, 1, 2]


def test_foreign_files_are_read_as_weights_only(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "good.pt")
    assert Checkpoint.load_weights(tmp_path / "good.pt")["weight"].tolist() == [1, 1]
    torch.save(torch.nn.Linear(1, 1), tmp_path / "code.pt")
    with pytest.raises(CheckpointRefused) as caught:
        Checkpoint.load_weights(tmp_path / "code.pt")
    assert "convert it once" in str(caught.value)


def test_training_that_is_let_go_of_leaves_nothing_behind(tmp_path: Path) -> None:
    model, optimizer, state = begin(tmp_path)
    learn(model, optimizer)
    state.step()
    learn(model, optimizer)
    state.finish()
    living = [weakref.ref(one) for one in (model, optimizer, state)]
    gc.collect()
    gc.disable()  # gigabytes should not have to wait for it
    try:
        del model, optimizer, state
        deadline = time.monotonic() + 10
        while _ours() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _ours() == []
        assert [one() for one in living] == [None, None, None]
    finally:
        gc.enable()


def test_optimizer_may_outlive_its_checkpoint(tmp_path: Path) -> None:
    model, optimizer, state = begin(tmp_path)
    learn(model, optimizer)
    state.step()
    state.finish()
    del state
    learn(model, optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def _ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-")]
