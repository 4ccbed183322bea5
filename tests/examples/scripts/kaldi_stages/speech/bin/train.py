import argparse, logging, os, time
import numpy as np, torch, yaml


def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--exp-dir", dest="exp_dir", required=True)
    return parser


def main():
    args = get_parser().parse_args()
    logging.basicConfig(level="INFO", format="[speech] %(asctime)s (trainer:%(lineno)d) %(levelname)s: %(message)s")
    conf = yaml.safe_load(open(args.config))
    os.makedirs(args.exp_dir, exist_ok=True)
    x = torch.from_numpy(np.load(os.path.join(args.data, "feats.npy")))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.Adam(model.parameters(), lr=conf["lr"])
    start = 1
    ckpt = os.path.join(args.exp_dir, "checkpoint.pth")
    if os.path.exists(ckpt):
        states = torch.load(ckpt)
        model.load_state_dict(states["model"]); opt.load_state_dict(states["opt"]); start = states["epoch"] + 1
        logging.info("The training was resumed using %s", ckpt)
    for epoch in range(start, conf["max_epoch"] + 1):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        time.sleep(0.3)
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, ckpt)
        torch.save(model.state_dict(), os.path.join(args.exp_dir, f"{epoch:03d}epoch.pth"))
        logging.info(f"{epoch}epoch results: [train] loss={loss.item():.3f}, acc={1/(1+loss.item()):.3f}, time=0.3 seconds, total_count={epoch*4}")


if __name__ == "__main__":
    main()
