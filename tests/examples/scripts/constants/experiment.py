"""No flags: constants at the top, a checkpoint in a folder, and a look for it at the start."""

import time
from pathlib import Path

import torch

EPOCHS = 30
SAVE_DIR = Path("saved")
CHECKPOINT = SAVE_DIR / "state.pt"

SAVE_DIR.mkdir(exist_ok=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
start = 0
if CHECKPOINT.exists():
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"]
for epoch in range(start, EPOCHS):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(epoch))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch}: loss={loss.item():.4f}", flush=True)
    time.sleep(0.35)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, CHECKPOINT)
