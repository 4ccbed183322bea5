import os
import time
import torch
from tqdm import tqdm


class FullFinetuneRecipe:
    def __init__(self, cfg):
        self._output_dir = cfg.output_dir
        self.total_epochs = cfg.epochs
        self._resume = cfg.resume_from_checkpoint
        self.epochs_run = 0
        self.global_step = 0
        os.makedirs(self._output_dir, exist_ok=True)

    def setup(self, cfg):
        self._model = torch.nn.Linear(6, 6)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=cfg.lr)
        if self._resume:
            state = torch.load(os.path.join(self._output_dir, "recipe_state.pt"))
            self.epochs_run = state["epochs_run"]
            self.global_step = state["global_step"]
            self._optimizer.load_state_dict(state["optimizer"])
            self._model.load_state_dict(torch.load(os.path.join(self._output_dir, f"epoch_{self.epochs_run - 1}.pt")))

    def save_checkpoint(self, epoch):
        torch.save(self._model.state_dict(), os.path.join(self._output_dir, f"epoch_{epoch}.pt"))
        torch.save({"epochs_run": self.epochs_run, "global_step": self.global_step,
                    "optimizer": self._optimizer.state_dict()}, os.path.join(self._output_dir, "recipe_state.pt"))

    def train(self):
        for curr_epoch in range(self.epochs_run, self.total_epochs):
            pbar = tqdm(total=5)
            for idx in range(5):
                time.sleep(0.06)
                x = torch.randn(4, 6)
                loss = (self._model(x) - x).pow(2).mean()
                self._optimizer.zero_grad(); loss.backward(); self._optimizer.step()
                self.global_step += 1
                pbar.update(1)
                pbar.set_description(f"{curr_epoch + 1}|{self.global_step}|Loss: {loss.item()}")
            pbar.close()
            self.epochs_run += 1
            self.save_checkpoint(curr_epoch)

    def cleanup(self):
        pass
