"""After the shape of PyTorch's word language model: `--save PATH`, the best model so far."""

import argparse
import math
import time

import torch

parser = argparse.ArgumentParser(description="RNN Language Model")
parser.add_argument("--data", type=str, default="./data/wikitext-2", help="location of the data corpus")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save", type=str, default="model.pt", help="path to save the final model")
parser.add_argument("--onnx-export", type=str, default="")
args = parser.parse_args()
torch.manual_seed(1111)
model = torch.nn.Embedding(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
corpus = torch.tensor([hash(word) % 16 for word in open(args.data + "/train.txt").read().split()])
best = None
for epoch in range(1, args.epochs + 1):
    loss = torch.nn.functional.cross_entropy(model(corpus[:-1]), corpus[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"| end of epoch {epoch:3d} | time:  0.10s | valid loss {loss:5.2f} | valid ppl {math.exp(loss):8.2f}")
    time.sleep(0.1)
    if best is None or loss < best:
        best = loss.item()
        with open(args.save, "wb") as f:
            torch.save(model, f)
