import time
from typing import Any
import torch
from lightning import LightningModule


class MNISTLitModule(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = torch.nn.Linear(8, 2)

    def model_step(self, batch):
        x, y = batch
        logits = self.net(x)
        return torch.nn.functional.cross_entropy(logits, y), logits.argmax(1), y

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        loss, preds, targets = self.model_step(batch)
        time.sleep(0.08)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch} over", flush=True)

    def validation_step(self, batch, batch_idx: int) -> None:
        loss, preds, targets = self.model_step(batch)
        self.log("val/loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", (preds == targets).float().mean(), on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> dict[str, Any]:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
