"""After the shape of lightning-hydra-template: its configuration is in many files, and so is where it writes."""

import os
import sys
from pathlib import Path

import hydra
import lightning as L
import torch
from omegaconf import DictConfig

root = Path(__file__).resolve().parent.parent
os.environ["PROJECT_ROOT"] = str(root)
sys.path.insert(0, str(root))


def instantiate_callbacks(callbacks_cfg):
    return [hydra.utils.instantiate(conf) for conf in callbacks_cfg.values() if "_target_" in conf]


def train(cfg: DictConfig):
    if cfg.get("seed"):
        L.seed_everything(cfg.seed, workers=True)
    model = hydra.utils.instantiate(cfg.model)
    callbacks = instantiate_callbacks(cfg.get("callbacks"))
    trainer = hydra.utils.instantiate(cfg.trainer, callbacks=callbacks)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=g)
    data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
    loader = torch.utils.data.DataLoader(data, 16)
    if cfg.get("train"):
        trainer.fit(model=model, train_dataloaders=loader, val_dataloaders=loader, ckpt_path=cfg.get("ckpt_path"))
    return trainer.callback_metrics


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg: DictConfig) -> None:
    train(cfg)


if __name__ == "__main__":
    main()
