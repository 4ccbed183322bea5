"""Scripts as people write them, with the real libraries and not a line for Stoker, evicted by the real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from shell import Shell

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

# Each prints `from N` where it goes on (epochs or steps done), `done N` after each, and `sum S` at the end.
TORCH = """
    import os, time, torch
    from pathlib import Path
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    path, first = Path("checkpoints/last.pt"), 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    print("from", first, flush=True)
    for epoch in range(first, 16):
        torch.manual_seed(epoch)
        loss = (model(torch.randn(32, 4)) - 1).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        SAVE
        print("done", epoch + 1, flush=True)
        time.sleep(0.4)
    print("sum", repr(sum(p.sum().item() for p in model.parameters())))
"""
ATOMIC = 'torch.save(state, "checkpoints/part"); os.replace("checkpoints/part", path)'
IN_PLACE = "torch.save(state, path)"

KERAS = """
    import glob, os, re, time
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy as np
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32"); y = x.sum(1)
    saved = sorted(glob.glob("checkpoints/model-*.keras"), key=os.path.getmtime)
    first = 0
    if saved:
        model, first = keras.models.load_model(saved[-1]), int(re.findall(r"-(\\d+)", saved[-1])[0])
    else:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    print("from", first, flush=True)
    def end(epoch, logs):
        print("done", epoch + 1, flush=True)
        time.sleep(0.4)
    model.fit(x, y, epochs=16, initial_epoch=first, shuffle=False, verbose=0, callbacks=[
        keras.callbacks.ModelCheckpoint("checkpoints/model-{epoch}.keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=end),
    ])
    print("sum", repr(float(sum(np.sum(w) for w in model.get_weights()))))
"""

BACKUP = """
    import os, time
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy as np
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32"); y = x.sum(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    seen = []
    def begin(epoch, logs):
        if not seen: print("from", epoch, flush=True)
        seen.append(epoch)
    def end(epoch, logs):
        print("done", epoch + 1, flush=True)
        time.sleep(0.4)
    model.fit(x, y, epochs=16, shuffle=False, verbose=0, callbacks=[
        keras.callbacks.BackupAndRestore("checkpoints/backup", delete_checkpoint=False),
        keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_epoch_end=end),
    ])
    print("sum", repr(float(sum(np.sum(w) for w in model.get_weights()))))
"""

LIGHTNING = """
    import logging, time, torch, warnings
    warnings.simplefilter("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    import lightning as L
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    class Net(L.LightningModule):
        def __init__(self):
            super().__init__(); self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, index): return (self.layer(batch[0]) - batch[1]).square().mean()
        def configure_optimizers(self): return torch.optim.Adam(self.parameters(), lr=0.1)
    class Say(Callback):
        def on_train_start(self, trainer, module): print("from", trainer.current_epoch, flush=True)
        def on_train_epoch_end(self, trainer, module):
            print("done", trainer.current_epoch + 1, flush=True)
            time.sleep(0.4)
    L.seed_everything(0, verbose=False)
    x = torch.randn(64, 4); y = x.sum(1, keepdim=True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
    keep = ModelCheckpoint("checkpoints", filename="{epoch}", save_last=True, save_top_k=-1)
    trainer = L.Trainer(max_epochs=16, accelerator="cpu", logger=False, enable_progress_bar=False,
                        enable_model_summary=False, callbacks=[keep, Say()])
    net = Net()
    trainer.fit(net, loader, ckpt_path="last")
    print("sum", repr(sum(p.sum().item() for p in net.parameters())))
"""

HUGGING_FACE = """
    import os, time, torch
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
    class Net(PreTrainedModel):
        config_class = PretrainedConfig
        def __init__(self, config):
            super().__init__(config); self.layer = torch.nn.Linear(4, 1); self.post_init()
        def forward(self, x, labels=None):
            out = self.layer(x).squeeze(-1)
            return {"loss": (out - labels).square().mean(), "logits": out}
    class Say(TrainerCallback):
        def on_train_begin(self, args, state, control, **_): print("from", state.global_step, flush=True)
        def on_step_end(self, args, state, control, **_):
            time.sleep(0.4)
            print("done", state.global_step, flush=True)
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = [{"x": row, "labels": row.sum()} for row in x]
    args = TrainingArguments("checkpoints", max_steps=32, save_steps=2, save_total_limit=3, report_to=[], use_cpu=True,
                             per_device_train_batch_size=8, logging_strategy="no", disable_tqdm=True, seed=0)
    net = Net(PretrainedConfig())
    trainer = Trainer(net, args, train_dataset=data, callbacks=[Say()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
    print("sum", repr(sum(p.sum().item() for p in net.parameters())))
"""

SCRIPTS = {
    "torch-atomic": TORCH.replace("SAVE", ATOMIC),
    "torch-in-place": TORCH.replace("SAVE", IN_PLACE).replace("16", "28"),
    "keras-model-checkpoint": KERAS.replace("epochs=16", "epochs=28"),
    "keras-backup-and-restore": BACKUP.replace("epochs=16", "epochs=28"),
    "lightning-last": LIGHTNING.replace("max_epochs=16", "max_epochs=28"),
    "hugging-face-trainer": HUGGING_FACE,
}


NOTICES = {
    "torch-atomic": ["0s"],
    "torch-in-place": ["0s", "1s"],
    "keras-model-checkpoint": ["0s"],
    "keras-backup-and-restore": ["1s"],
    "lightning-last": ["0s"],
    "hugging-face-trainer": ["2s"],
}

# All of them in one process, for the time that imports take.
TOGETHER = """
    import os, runpy, sys
    for name in sys.argv[1:]:
        os.makedirs(f"{name}-alone/checkpoints")
        os.chdir(f"{name}-alone")
        print("script", name, flush=True)
        runpy.run_path(f"../{name}.py")
        os.chdir("..")
"""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """What each script ends with when nobody evicts it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).replace("time.sleep(0.4)", "pass"))
    command = [sys.executable, "-c", textwrap.dedent(TOGETHER), *SCRIPTS]
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    sums = [float(one) for one in re.findall(r"^sum (\S+)$", ran.stdout, re.M)]
    return dict(zip(SCRIPTS, sums, strict=True))


def numbers(shell: Shell, attempt: int, word: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^{word} (\d+)$", logged(shell, attempt), re.M)]


def logged(shell: Shell, attempt: int) -> str:
    """Read where the agent writes it: a command for each look would take the time of the script."""
    paths = list(shell.home.glob(f"store/runs/*/attempts/{attempt}/logs/0.log"))
    return paths[0].read_text() if paths else ""


def commits(shell: Shell, attempt: int) -> list[Path]:
    return list(shell.home.glob(f"store/runs/*/checkpoints/sets/{attempt:04}-*.json"))


def lose_the_machine(shell: Shell, attempt: int, notice: str) -> None:
    """Once it has a checkpoint, and has gone on from there."""
    shell.wait_for(lambda: commits(shell, attempt), "a commit", 90)
    reached = max(numbers(shell, attempt, "done"))
    shell.wait_for(lambda: max(numbers(shell, attempt, "done")) > reached, "another epoch")
    shell.stoker("evict", "job-1", "--notice", notice)
    shell.wait_for(lambda: numbers(shell, attempt + 1, "from"), "the next attempt", 90)


@pytest.mark.heavy
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unchanged_script_resumes_from_its_last_checkpoint(
    shell: Shell, name: str, undisturbed: dict[str, float]
) -> None:
    """The end is that of a run nobody disturbed."""
    shell.write("train.py", SCRIPTS[name])
    shell.job("python train.py", env=ONE_THREAD)
    shell.stoker("run", "--detach")
    for attempt, notice in enumerate(NOTICES[name], start=1):
        lose_the_machine(shell, attempt, notice)
    last = len(NOTICES[name]) + 1
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", logged(shell, last)
    assert [one["state"] for one in facts["attempts"]] == ["evicted"] * (last - 1) + ["ended"]
    for attempt in range(2, last + 1):
        [begun] = numbers(shell, attempt, "from")
        assert numbers(shell, attempt - 1, "from")[0] < begun <= max(numbers(shell, attempt - 1, "done"))
        assert numbers(shell, attempt, "done")[0] == begun + 1
    [total] = re.findall(r"^sum (\S+)$", logged(shell, last), re.M)
    assert float(total) == pytest.approx(undisturbed[name], abs=1e-5)


# Its first attempt takes so long that its eviction comes in time, however busy the computer is.
FORGETFUL = """
    import os, time
    from pathlib import Path
    WHERE
    print("from", first, flush=True)
    for epoch in range(first, 80):
        time.sleep(0.4 if os.environ["STOKER_ATTEMPT"] == "1" else 0.01)
        Path(f"checkpoints/epoch-{epoch}.pt").write_text(str(epoch))
        print(f"epoch {epoch}, loss {1 / (epoch + 1):.3f}", flush=True)
        print("done", epoch + 1, flush=True)
"""
USES_IT = 'first = len(list(Path("checkpoints").glob("epoch-*.pt")))'


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "where",
    [pytest.param("first = 0", id="begins again"), pytest.param(USES_IT, id="resumes", marks=pytest.mark.heavy)],
)
def test_what_a_script_repeats_counts_as_redone_whatever_its_checkpoint_says(shell: Shell, where: str) -> None:
    shell.write("train.py", FORGETFUL.replace("WHERE", where))
    shell.job("python train.py", env=ONE_THREAD)
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: numbers(shell, 1, "done")[-1:] >= [7], "seven epochs", 60)
    shell.stoker("evict", "job-1", "--notice", "1s")
    assert shell.ended("job-1")["state"] == "succeeded"
    made = json.loads(shell.stoker("receipt", "job-1", "--json").stdout)["receipt"]
    [taken] = made["taken"]
    redone = float(taken["redone"]["seconds"])
    if where == USES_IT:
        assert numbers(shell, 2, "from")[0] >= 6
        assert redone < 2.0 and not taken["again"]
    else:
        first = made["stays"][0]["parts"]
        assert taken["again"] == "epoch 0"
        assert redone >= 7 * 0.4, "all that it had done"
        assert float(first["useful"]["seconds"]) == 0.0
        assert "the script started over at epoch 0" in shell.stoker("explain", "job-1").stdout
