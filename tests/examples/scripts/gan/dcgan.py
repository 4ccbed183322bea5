"""After the shape of PyTorch's dcgan: `--outf`, two networks, numbered files."""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=3, help="number of epochs to train for")
parser.add_argument("--netG", default="", help="path to netG (to continue training)")
parser.add_argument("--outf", default=".", help="folder to output images and model checkpoints")
opt = parser.parse_args()
os.makedirs(opt.outf, exist_ok=True)
netG, netD = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam([*netG.parameters(), *netD.parameters()], lr=1e-3)
for epoch in range(opt.niter):
    loss = netD(netG(torch.randn(8, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[{epoch}/{opt.niter}][0/1] Loss_D: {loss.item():.4f} Loss_G: {loss.item():.4f}", flush=True)
    time.sleep(0.1)
    torch.save(netG.state_dict(), "%s/netG_epoch_%d.pth" % (opt.outf, epoch))
    torch.save(netD.state_dict(), "%s/netD_epoch_%d.pth" % (opt.outf, epoch))
