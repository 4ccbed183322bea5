"""After the shape of PyTorch's mnist example: flags, a training loop, and a model saved beside the script at the end."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(x), dim=1)


def train(args, model, optimizer, epoch):
    generator = torch.Generator().manual_seed(epoch)
    for batch in range(4):
        data = torch.randn(16, 64, generator=generator)
        target = data[:, :10].argmax(1)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch * 16}/64 ({25 * batch:.0f}%)]\tLoss: {loss.item():.6f}", flush=True)
    time.sleep(args.pace)


def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--no-cuda", action="store_true", default=False)
    parser.add_argument("--log-interval", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.1)
    parser.add_argument("--save-model", action="store_true", default=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        train(args, model, optimizer, epoch)
    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()
