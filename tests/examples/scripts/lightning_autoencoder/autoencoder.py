"""Lightning with a ModelCheckpoint of its own, `save_last`, a CSV log, and the last checkpoint taken up by itself."""

import os
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CKPT_DIR = os.path.join("saved_models", "autoencoder")


class LitAutoEncoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 3)
        self.decoder = nn.Linear(3, 16)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_start(self):
        print(f"starting epoch {self.current_epoch}", flush=True)

    def on_train_epoch_end(self):
        time.sleep(0.35)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    pl.seed_everything(42)
    loader = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=32)
    checkpoint = ModelCheckpoint(dirpath=CKPT_DIR, save_last=True, filename="{epoch}")
    trainer = pl.Trainer(
        max_epochs=40,
        accelerator="cpu",
        callbacks=[checkpoint],
        logger=CSVLogger("logs", name="autoencoder"),
        enable_progress_bar=False,
        log_every_n_steps=1,
    )
    last = os.path.join(CKPT_DIR, "last.ckpt")
    trainer.fit(LitAutoEncoder(), loader, ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main()
