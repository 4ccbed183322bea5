import os
import time
import torch
from . import logger


class TrainLoop:
    def __init__(self, *, lr, log_interval, save_interval, resume_checkpoint, steps):
        self.model = torch.nn.Linear(4, 4)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.log_interval, self.save_interval, self.steps = log_interval, save_interval, steps
        self.resume_checkpoint = resume_checkpoint
        self.step = 0
        self.resume_step = 0
        self._load_and_sync_parameters()
        if self.resume_step:
            self._load_optimizer_state()

    def _load_and_sync_parameters(self):
        resume_checkpoint = find_resume_checkpoint() or self.resume_checkpoint
        if resume_checkpoint:
            self.resume_step = parse_resume_step_from_filename(resume_checkpoint)
            logger.log(f"loading model from checkpoint: {resume_checkpoint}...")
            self.model.load_state_dict(torch.load(resume_checkpoint))

    def _load_optimizer_state(self):
        main_checkpoint = find_resume_checkpoint() or self.resume_checkpoint
        opt_checkpoint = os.path.join(os.path.dirname(main_checkpoint), f"opt{self.resume_step:06}.pt")
        if os.path.exists(opt_checkpoint):
            logger.log(f"loading optimizer state from checkpoint: {opt_checkpoint}")
            self.opt.load_state_dict(torch.load(opt_checkpoint))

    def run_loop(self):
        while self.step + self.resume_step < self.steps:
            time.sleep(0.12)
            x = torch.randn(8, 4)
            loss = (self.model(x) - x).pow(2).mean()
            self.opt.zero_grad(); loss.backward(); self.opt.step()
            self.step += 1
            logger.logkv("step", self.step + self.resume_step)
            logger.logkv("loss", loss.item())
            logger.logkv("grad_norm", 0.3)
            if self.step % self.log_interval == 0:
                logger.dumpkvs()
            if self.step % self.save_interval == 0:
                self.save()

    def save(self):
        filename = f"model{(self.step + self.resume_step):06d}.pt"
        logger.log(f"saving model {filename}...")
        torch.save(self.model.state_dict(), os.path.join(get_blob_logdir(), filename))
        torch.save(self.opt.state_dict(), os.path.join(get_blob_logdir(), f"opt{(self.step + self.resume_step):06d}.pt"))


def parse_resume_step_from_filename(filename):
    split = filename.split("model")
    if len(split) < 2:
        return 0
    split1 = split[-1].split(".")[0]
    try:
        return int(split1)
    except ValueError:
        return 0


def get_blob_logdir():
    return os.environ.get("DIFFUSION_BLOB_LOGDIR", logger.get_dir())


def find_resume_checkpoint():
    return None
