import argparse, os, os.path as osp, time, re, glob
import torch


def parse_args():
    parser = argparse.ArgumentParser(description="Train a detector")
    parser.add_argument("config", nargs="?", default="configs/faster_rcnn.py", help="train config file path")
    parser.add_argument("--work-dir", help="the dir to save logs and models")
    parser.add_argument("--resume-from", help="the checkpoint file to resume from")
    parser.add_argument("--auto-resume", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = {}
    exec(open(args.config).read(), cfg)
    if args.work_dir is not None:
        work_dir = args.work_dir
    else:
        work_dir = osp.join("./work_dirs", osp.splitext(osp.basename(args.config))[0])
    os.makedirs(osp.abspath(work_dir), exist_ok=True)
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), 0.02)
    start = 0
    if args.resume_from:
        ck = torch.load(args.resume_from, weights_only=False)
        model.load_state_dict(ck["state_dict"])
        start = ck["meta"]["epoch"]
        print("mmdet - INFO - resumed epoch %d" % start, flush=True)
    x = torch.randn(32, 4)
    for epoch in range(start, cfg["total_epochs"]):
        for i in range(5):
            loss = (model(x) - 1).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.1)
        print(
            "2026-01-01 00:00:00,000 - mmdet - INFO - Epoch [%d][5/5]\tlr: 2.000e-02, eta: 0:00:10, time: 0.100, data_time: 0.001, memory: 100, loss_cls: %.4f, loss: %.4f"
            % (epoch + 1, loss.item() / 2, loss.item()),
            flush=True,
        )
        torch.save(
            {"state_dict": model.state_dict(), "meta": {"epoch": epoch + 1}},
            osp.join(work_dir, "epoch_%d.pth" % (epoch + 1)),
        )
        link = osp.join(work_dir, "latest.pth")
        if osp.lexists(link):
            os.remove(link)
        os.symlink("epoch_%d.pth" % (epoch + 1), link)


if __name__ == "__main__":
    main()
