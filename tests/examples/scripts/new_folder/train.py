import argparse, os, time
import torch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--save_dir", default="save", help="where to write")
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--resume", default="", help="path of a checkpoint")
    args = p.parse_args()
    os.makedirs(args.save_dir)  # never write over an earlier experiment
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    start = 0
    if args.resume:
        state = torch.load(args.resume); model.load_state_dict(state["model"]); start = state["epoch"] + 1
    for epoch in range(start, args.epochs):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        time.sleep(0.3)
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(args.save_dir, f"epoch_{epoch}.pt"))


if __name__ == "__main__":
    main()
