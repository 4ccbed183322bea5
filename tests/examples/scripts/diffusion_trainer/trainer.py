from pathlib import Path
import torch, time
from tqdm.auto import tqdm


def exists(x):
    return x is not None


class Trainer(object):
    def __init__(
        self, model, folder, *, train_lr=1e-4, train_num_steps=100, save_and_sample_every=5, results_folder="./results"
    ):
        self.model = model
        self.folder = folder
        self.save_and_sample_every = save_and_sample_every
        self.train_num_steps = train_num_steps
        self.opt = torch.optim.Adam(model.parameters(), lr=train_lr)
        self.results_folder = Path(results_folder)
        self.results_folder.mkdir(exist_ok=True)
        self.step = 0

    def save(self, milestone):
        data = {"step": self.step, "model": self.model.state_dict(), "opt": self.opt.state_dict()}
        torch.save(data, str(self.results_folder / f"model-{milestone}.pt"))

    def load(self, milestone):
        data = torch.load(str(self.results_folder / f"model-{milestone}.pt"), map_location="cpu", weights_only=True)
        self.model.load_state_dict(data["model"])
        self.step = data["step"]
        self.opt.load_state_dict(data["opt"])

    def train(self):
        with tqdm(initial=self.step, total=self.train_num_steps) as pbar:
            while self.step < self.train_num_steps:
                x = torch.randn(4, 4)
                loss = (self.model(x) - x).pow(2).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                time.sleep(0.15)
                pbar.set_description(f"loss: {loss.item():.4f}")
                self.step += 1
                if self.step != 0 and self.step % self.save_and_sample_every == 0:
                    milestone = self.step // self.save_and_sample_every
                    self.save(milestone)
                    print(f"milestone {milestone} saved")
                pbar.update(1)
        print("training complete")
