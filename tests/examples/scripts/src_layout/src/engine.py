"""The loop."""

import logging
import time
from pathlib import Path

import torch

log = logging.getLogger("engine")


class Engine:
    def __init__(self, model, config):
        self.model, self.config, self.epoch = model, config, 0
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        self.work_dir = Path(config["work_dir"])
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.latest = self.work_dir / "latest.pth"

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
        torch.save(state, self.latest)

    def load(self):
        state = torch.load(self.latest)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def fit(self):
        if self.latest.exists():
            self.load()
        while self.epoch < self.config["epochs"]:
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(self.epoch))
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.epoch += 1
            log.info("epoch %d/%d train_loss=%.4f", self.epoch, self.config["epochs"], loss.item())
            self.save()
            time.sleep(0.35)
