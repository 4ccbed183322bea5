import torch


class State:
    def __init__(self, model):
        self.model, self.epoch = model, 0

    def save(self, folder):
        torch.save({"model": self.model.state_dict(), "epoch": self.epoch}, folder / f"epoch_{self.epoch:03d}.pt")

    def load(self, folder):
        saved = sorted(folder.glob("epoch_*.pt"))
        if saved:
            state = torch.load(saved[-1])
            self.model.load_state_dict(state["model"])
            self.epoch = state["epoch"]
