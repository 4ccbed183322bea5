"""Sample from a trained model."""

import torch

out_dir = "out"
checkpoint = torch.load(out_dir + "/ckpt.pt")
print(len(checkpoint["model"]))
