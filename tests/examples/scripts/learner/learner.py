"""The part of fastai that matters here: `learn.save(name)` writes `<path>/models/<name>.pth`."""

import pickle
import time
from pathlib import Path

import torch


class DataBunch:
    def __init__(self, x):
        self.x, self.y = x, x.sum(1, keepdim=True)

    @classmethod
    def from_random(cls, number):
        return cls(torch.randn(number, 8, generator=torch.Generator().manual_seed(0)))


class SaveModel:
    def __init__(self, every, name):
        self.every, self.name = every, name


class Learner:
    def __init__(self, data, path=".", model_dir="models", callbacks=()):
        torch.manual_seed(0)
        self.data, self.path, self.model_dir, self.callbacks = data, Path(path), model_dir, callbacks
        self.model, self.epoch = torch.nn.Linear(8, 1), 0

    def path_of(self, name):
        return self.path / self.model_dir / f"{name}.pth"

    def has(self, name):
        return self.path_of(name).exists()

    def save(self, name):
        self.path_of(name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": self.model.state_dict(), "epoch": self.epoch}, self.path_of(name))

    def load(self, name):
        state = torch.load(self.path_of(name))
        self.model.load_state_dict(state["model"])
        self.epoch = state["epoch"]

    def fit(self, epochs, lr):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        print("epoch     train_loss  time", flush=True)
        while self.epoch < epochs:
            loss = (self.model(self.data.x) - self.data.y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {self.epoch} train_loss {loss.item():.6f} time 00:00", flush=True)
            self.epoch += 1
            time.sleep(0.35)
            for one in self.callbacks:
                self.save(one.name)

    def export(self, name):
        with open(self.path / name, "wb") as f:
            pickle.dump(self.model.state_dict(), f)
