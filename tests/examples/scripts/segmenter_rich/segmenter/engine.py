import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.dir = Path(cfg.train.run_dir) / cfg.name
        self.dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(cfg.train.seed)
        self.model = torch.nn.Linear(8, 3)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.train.lr)
        self.epoch, self.best = 0, 0.0
        self.console = Console()

    @property
    def last(self):
        return self.dir / "last.pt"

    def state(self):
        return dict(model=self.model.state_dict(), opt=self.opt.state_dict(), epoch=self.epoch, best=self.best)

    def maybe_resume(self):
        if self.last.is_file():
            s = torch.load(self.last, map_location="cpu")
            self.model.load_state_dict(s["model"]); self.opt.load_state_dict(s["opt"])
            self.epoch, self.best = s["epoch"], s["best"]

    def fit(self):
        self.maybe_resume()
        while self.epoch < self.cfg.train.epochs:
            g = torch.Generator().manual_seed(self.epoch)
            x = torch.randn(32, 8, generator=g); y = x[:, :3].argmax(1)
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad(); loss.backward(); self.opt.step()
            miou = (self.model(x).argmax(1) == y).float().mean().item()
            self.epoch += 1
            time.sleep(0.3)
            table = Table(title=f"epoch {self.epoch}")
            table.add_column("metric"); table.add_column("value")
            table.add_row("loss", f"{loss.item():.4f}"); table.add_row("mIoU", f"{miou:.4f}")
            self.console.print(table)
            tmp = self.last.with_suffix(".tmp")
            torch.save(self.state(), tmp); tmp.rename(self.last)
            if miou > self.best:
                self.best = miou
                torch.save(self.model.state_dict(), self.dir / "best.pt")
