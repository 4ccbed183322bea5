"""A killed training with Hugging Face's Trainer resumes after its last step."""

from __future__ import annotations

import random
from pathlib import Path

from test_exact_drill import KILLED, Drill

TRAIN = """
import hashlib, json, os, random, time
import numpy, torch, transformers
from torch.utils.data import Dataset
from stoker.checkpoint import surroundings as progress
from stoker.checkpoint.huggingface import StokerCallback

progress.EVERY_S = 0.0  # says at every step how much is done

transformers.logging.set_verbosity_error()
transformers.set_seed(3)
data = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
target = (data.sum(1) > 0).long()
log = os.open("steps.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Noisy(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, row):
        return {"x": data[row] + torch.randn(6) * 0.1 + random.random() * 0.1, "labels": target[row]}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(12, 2),
        )

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Log(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "grad_norm" in logs:
            said = [state.global_step, float(logs["loss"]).hex(), float(logs["grad_norm"]).hex(), logs["learning_rate"]]
            os.write(log, (" ".join(map(str, said)) + "\\n").encode())
            time.sleep(0.004)


model = Net()
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=4, learning_rate=1e-2,
    logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=2, use_cpu=True,
    lr_scheduler_type="cosine", eval_strategy="epoch",
)
trainer = transformers.Trainer(model, arguments, train_dataset=Noisy(), eval_dataset=Noisy(), callbacks=[Log()])
ours = StokerCallback(trainer, every=int(os.environ.get("EVERY", 3)))
trainer.train()
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
moments = hashlib.sha256()
for slot in trainer.optimizer.state_dict()["state"].values():
    for tensor in slot.values():
        moments.update(tensor.numpy().tobytes())
wall = ("runtime", "per_second")
json.dump({
    "model": digest.hexdigest(), "optimizer": moments.hexdigest(), "steps": trainer.state.global_step,
    "history": [{k: v for k, v in one.items() if not k.endswith(wall)} for one in trainer.state.log_history],
    "random": [torch.rand(1).item(), random.random(), numpy.random.rand()], "epoch": trainer.state.epoch,
}, open("final.json", "w"))
"""


def test_killed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Dropout, a shuffled loader with workers that augment, accumulation, a schedule, evaluation, the log history."""
    it = Drill(tmp_path, TRAIN, imports=("transformers.trainer", "torch._dynamo", "torch.utils.data"))
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
    it = Drill(tmp_path, TRAIN, imports=("transformers.trainer", "torch._dynamo", "torch.utils.data"))
    it.add("undisturbed", EVERY="10")
    it.add("killed", EVERY="10", kill_at=14)
    it.add("killed", EVERY="10")
    assert it.run() == [0, KILLED, 0], it.said("killed") + it.said("undisturbed")
    it.assert_same("killed")
