"""Lightning with its own folder of logs and checkpoints, and a flag for the path to resume from."""

import argparse
import time

import lightning as L
import torch


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} done", flush=True)
        time.sleep(0.35)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=30)
    parser.add_argument("--ckpt_path", default=None)
    args = parser.parse_args()
    L.seed_everything(0)
    x = torch.randn(64, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
    trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="cpu", enable_progress_bar=False, log_every_n_steps=1)
    trainer.fit(Net(), loader, ckpt_path=args.ckpt_path)
