"""After the shape of minGPT: a configuration in Python, a Trainer in a package, and a callback that saves."""

import os
import time

import torch
from mingpt.trainer import Trainer
from mingpt.utils import CfgNode as CN


def get_config():
    C = CN()
    C.system = CN()
    C.system.seed = 3407
    C.system.work_dir = "./out/chargpt"
    C.trainer = Trainer.get_default_config()
    C.trainer.learning_rate = 5e-4
    return C


if __name__ == "__main__":
    config = get_config()
    os.makedirs(config.system.work_dir, exist_ok=True)
    torch.manual_seed(config.system.seed)
    text = "to be or not to be that is the question " * 8
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text])
    model = torch.nn.Embedding(len(chars), len(chars))
    ckpt_path = os.path.join(config.system.work_dir, "model.pt")
    trainer = Trainer(config.trainer, model, data)
    if os.path.exists(ckpt_path):
        trainer.iter_num = model.load_state_dict(torch.load(ckpt_path)["model"]) and torch.load(ckpt_path)["iter"]

    def batch_end_callback(trainer):
        if trainer.iter_num % 2 == 0:
            print(f"iter_dt 150.00ms; iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}", flush=True)
            torch.save({"model": model.state_dict(), "iter": trainer.iter_num}, ckpt_path)
        time.sleep(0.15)

    trainer.set_callback("on_batch_end", batch_end_callback)
    trainer.run()
