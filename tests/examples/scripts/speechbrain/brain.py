import logging
import os
import pathlib
import shutil
import time
import torch
import yaml

logger = logging.getLogger(__name__)


def load_hparams(path, overrides):
    text = open(path).read()
    hparams = yaml.safe_load(text)
    for k, v in list(hparams.items()):
        if isinstance(v, str):
            for other, value in hparams.items():
                v = v.replace(f"<{other}>", str(value))
            hparams[k] = v
    return hparams


def create_experiment_directory(folder, hparams_file):
    os.makedirs(folder, exist_ok=True)
    shutil.copy(hparams_file, os.path.join(folder, "hyperparams.yaml"))
    logging.basicConfig(level=logging.INFO, format="%(name)s - %(message)s")


class Checkpointer:
    def __init__(self, checkpoints_dir, recoverables):
        self.checkpoints_dir = pathlib.Path(checkpoints_dir)
        os.makedirs(self.checkpoints_dir, exist_ok=True)
        self.recoverables = recoverables

    def save_checkpoint(self, meta):
        ckpt_dir = self.checkpoints_dir / ("CKPT+" + time.strftime("%Y-%m-%d+%H-%M-%S") + "+00")
        i = 0
        while ckpt_dir.exists():
            i += 1
            ckpt_dir = self.checkpoints_dir / ("CKPT+" + time.strftime("%Y-%m-%d+%H-%M-%S") + f"+{i:02d}")
        os.makedirs(ckpt_dir)
        for name, obj in self.recoverables.items():
            torch.save(obj.state_dict(), ckpt_dir / f"{name}.ckpt")
        with open(ckpt_dir / "CKPT.yaml", "w") as f:
            yaml.dump(meta, f)
        for old in self.list_checkpoints()[:-2]:
            shutil.rmtree(old)

    def list_checkpoints(self):
        return sorted((p.parent for p in self.checkpoints_dir.glob("CKPT+*/CKPT.yaml")),
                      key=lambda p: yaml.safe_load(open(p / "CKPT.yaml"))["unixtime"])

    def recover_if_possible(self):
        found = self.list_checkpoints()
        if not found:
            return None
        logger.info(f"Loading a checkpoint from {found[-1]}")
        for name, obj in self.recoverables.items():
            obj.load_state_dict(torch.load(found[-1] / f"{name}.ckpt"))
        return yaml.safe_load(open(found[-1] / "CKPT.yaml"))


class Brain:
    def __init__(self, hparams):
        self.hparams = hparams
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=hparams["lr"])
        self.checkpointer = Checkpointer(hparams["save_folder"], {"model": self.model, "optimizer": self.optimizer})

    def fit(self, epochs):
        meta = self.checkpointer.recover_if_possible()
        start = meta["epoch"] if meta else 0
        for epoch in epochs:
            if epoch <= start:
                continue
            logger.info(f"Going into epoch {epoch}")
            time.sleep(0.3)
            x = torch.randn(8, 4)
            loss = (self.model(x) - x).pow(2).mean()
            self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
            line = f"epoch: {epoch}, lr: {self.hparams['lr']:.2e} - train loss: {loss.item():.2f} - valid loss: {loss.item():.2f}, valid PER: {loss.item() * 50:.2f}"
            logger.info(line)
            with open(self.hparams["train_log"], "a") as f:
                print(line, file=f)
            self.checkpointer.save_checkpoint({"epoch": epoch, "unixtime": time.time(), "PER": loss.item() * 50})
