"""Frameworks that wrap the model in DistributedDataParallel themselves: three ranks, killed, end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import rankgroup

BEGIN = """
import hashlib, json, logging, os, random, time, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import Dataset

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
data = torch.randn(72, 6, generator=torch.Generator().manual_seed(1))
target = (data.sum(1) > 0).long()
log = os.open(f"steps-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Rows(Dataset):
    def __len__(self):
        return 72

    def __getitem__(self, row):
        time.sleep(0.003)
        return {"x": data[row] + torch.randn(6) * 0.1, "labels": target[row]}


def layers():
    # Wide enough that each rank adds up a part of the first layer.
    return torch.nn.Sequential(
        torch.nn.Linear(6, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(), torch.nn.Dropout(0.3),
        torch.nn.Linear(300, 2),
    )


def end(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    json.dump([digest.hexdigest(), torch.rand(1).item()], open(f"final-{rank}.json", "w"))
"""

LIGHTNING = """
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning
from torch.utils.data import DataLoader
from stoker.checkpoint.lightning import StokerCallback

lightning.seed_everything(3 + rank, verbose=False)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layers(batch["x"]), batch["labels"])
        os.write(log, f"{self.global_step} {loss.item().hex()}\\n".encode())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


model = Net()
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=3, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[StokerCallback(every=3)],
)
trainer.fit(model, DataLoader(Rows(), 4, shuffle=True))
end(model)
"""

HUGGING_FACE = """
import transformers
from stoker.checkpoint.huggingface import StokerCallback

transformers.logging.set_verbosity_error()
transformers.set_seed(3 + rank)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x, labels):
        logits = self.layers(x)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        os.write(log, f"{trainer.state.global_step} {loss.item().hex()}\\n".encode())
        return {"loss": loss, "logits": logits}


model = Net()
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=4, num_train_epochs=3, learning_rate=1e-2, save_strategy="no", report_to=[],
    disable_tqdm=True, use_cpu=True, ddp_backend="gloo", seed=3 + rank,
)
trainer = transformers.Trainer(model, arguments, train_dataset=Rows())
StokerCallback(trainer, every=3)
trainer.train()
end(model)
"""


@pytest.mark.timeout(300)
@pytest.mark.heavy
@pytest.mark.parametrize("script", [LIGHTNING, HUGGING_FACE], ids=["lightning", "hugging-face"])
def test_ranks_of_a_framework_end_with_the_same_bits(tmp_path: Path, script: str) -> None:
    rankgroup.also_import("lightning", "transformers.trainer")
    train, disturbed, undisturbed = tmp_path / "train.py", tmp_path / "killed", tmp_path / "undisturbed"
    train.write_text(BEGIN + script, encoding="utf-8")
    assert rankgroup.start(train, undisturbed, 3, env={}) == rankgroup.ended(3), rankgroup.said(undisturbed)
    killed = rankgroup.start(train, disturbed, 3, env={}, kill_at=11)
    assert killed == rankgroup.killed(3), rankgroup.said(disturbed)
    assert rankgroup.start(train, disturbed, 3, env={}) == rankgroup.ended(3), rankgroup.said(disturbed)
    assert rankgroup.said(disturbed).count("resumed from step-") == 3
    rankgroup.assert_same(disturbed, undisturbed, 3)
