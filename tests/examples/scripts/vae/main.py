"""After the shape of PyTorch's VAE example: pictures in results/, and a file for each epoch."""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser(description="VAE MNIST Example")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(epoch):
    x = torch.rand(16, 8)
    loss = torch.nn.functional.binary_cross_entropy(torch.sigmoid(model(x)), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    os.makedirs("results", exist_ok=True)
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        time.sleep(0.1)
        with open("results/sample_" + str(epoch) + ".png", "wb") as picture:
            picture.write(bytes(16))
        torch.save(model.state_dict(), f"results/vae_epoch_{epoch}.pt")
