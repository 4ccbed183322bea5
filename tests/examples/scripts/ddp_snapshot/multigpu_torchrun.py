"""After the shape of PyTorch's tutorial on fault tolerance: made for torchrun, with a snapshot that is taken up again."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP


def ddp_setup():
    init_process_group(backend="gloo")


class Trainer:
    def __init__(self, model, optimizer, save_every, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.model, self.optimizer, self.save_every = model, optimizer, save_every
        self.epochs_run, self.snapshot_path = 0, snapshot_path
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}", flush=True)

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(epoch * 100 + self.rank))
            loss = (self.model(x) - x.mean(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0:
                print(f"[GPU{self.local_rank}] Epoch {epoch} | Batchsize: 8 | Steps: 1 | Loss: {loss.item():.4f}", flush=True)
            time.sleep(0.35)
            if self.rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)
        dist.barrier()


def main(save_every, total_epochs, snapshot_path="snapshot.pt"):
    ddp_setup()
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    Trainer(model, optimizer, save_every, snapshot_path).train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("--total_epochs", default=40, type=int, help="Total epochs to train the model")
    parser.add_argument("--save_every", default=1, type=int, help="How often to save a snapshot")
    args = parser.parse_args()
    main(args.save_every, args.total_epochs)
