"""A Lightning training that is killed in the middle of an epoch resumes after its last batch."""

from __future__ import annotations

import random
from pathlib import Path

from test_exact_drill import KILLED, Drill

TRAIN = """
import hashlib, json, logging, os, random, time, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning, numpy, torch
from torch.utils.data import DataLoader, Dataset
from stoker.checkpoint import surroundings as progress
from stoker.checkpoint.lightning import StokerCallback

progress.EVERY_S = 0.0  # says at every step how much is done

lightning.seed_everything(3, verbose=False)
data = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
target = (data.sum(1) > 0).long()
log = os.open("steps.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
epochs = []


class Noisy(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, row):
        return data[row] + torch.randn(6) * 0.1 + random.random() * 0.1, target[row]


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(12, 2),
        )

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        said = [self.current_epoch * 10 + batch_idx, loss.item().hex(), self.optimizers().param_groups[0]["lr"]]
        os.write(log, (" ".join(map(str, said)) + "\\n").encode())
        time.sleep(0.004)
        return loss

    def on_train_epoch_end(self):
        epochs.append(self.trainer.callback_metrics["loss"].item().hex())

    def validation_step(self, batch, batch_idx):
        self.log("val", torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


model = Net()
ours = StokerCallback(every=int(os.environ.get("EVERY", 3)))
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[ours],
)
trainer.fit(model, DataLoader(Noisy(), 8, shuffle=True, num_workers=2), DataLoader(Noisy(), 40))
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
moments = hashlib.sha256()
for slot in trainer.optimizers[0].state_dict()["state"].values():
    for tensor in slot.values():
        moments.update(tensor.numpy().tobytes())
json.dump({
    "model": digest.hexdigest(), "optimizer": moments.hexdigest(), "steps": trainer.global_step, "last": epochs[-1],
    "val": trainer.callback_metrics["val"].item().hex(), "random": [torch.rand(1).item(), random.random()],
}, open("final.json", "w"))
"""


def test_killed_fit_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Dropout, batch norm, a shuffled loader with workers that augment, a schedule, validation, epoch metrics."""
    it = Drill(tmp_path, TRAIN, imports=("lightning", "torch._dynamo", "torch.utils.data"))
    it.add("undisturbed")
    it.add("killed", kill_at=random.randrange(6, 18))
    it.add("killed", kill_at=random.randrange(26, 44))
    it.add("killed")
    assert it.run() == [0, KILLED, KILLED, 0], it.said("killed") + it.said("undisturbed")
    it.assert_same("killed")
    shares = it.shares("undisturbed")
    assert shares == sorted(set(shares)) and (shares[0], shares[-1]) == (1 / 40, 1.0)
    assert it.repeated("killed") <= 2 * 8


def test_due_with_the_last_batch_of_an_epoch_it_is_saved_with_the_first_of_the_next(tmp_path: Path) -> None:
    it = Drill(tmp_path, TRAIN, imports=("lightning", "torch._dynamo", "torch.utils.data"))
    it.add("undisturbed", EVERY="10")
    it.add("killed", EVERY="10", kill_at=14)
    it.add("killed", EVERY="10")
    assert it.run() == [0, KILLED, 0], it.said("killed") + it.said("undisturbed")
    it.assert_same("killed")
