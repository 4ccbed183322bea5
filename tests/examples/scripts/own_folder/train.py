import argparse, os, sys, time
from pathlib import Path
import torch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--run-dir", type=Path, default=Path("runs/base"))
    p.add_argument("--resume", action="store_true")
    p.add_argument("--epochs", type=int, default=40)
    args = p.parse_args()
    if args.run_dir.exists() and not args.resume:
        raise FileExistsError(f"{args.run_dir} already exists; pass --resume to continue it, or choose another folder")
    args.run_dir.mkdir(parents=True, exist_ok=args.resume)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    start = 0
    if args.resume:
        state = torch.load(args.run_dir / "last.ckpt")
        model.load_state_dict(state["model"]); start = state["epoch"] + 1
    for epoch in range(start, args.epochs):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        time.sleep(0.3)
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch}, args.run_dir / "last.ckpt")


if __name__ == "__main__":
    main()
