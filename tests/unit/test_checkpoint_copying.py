"""The copy made beside the training: whole when nothing interfered, and not used when something did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stoker.checkpoint import Checkpoint  # noqa: E402


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
    with pytest.raises(Exception, match="would execute what is in it") as caught:
        Checkpoint.load_weights(tmp_path / "code.pt")
    assert "convert it once" in str(caught.value)
