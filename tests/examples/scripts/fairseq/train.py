import argparse, os, time, logging, sys
import torch

logging.basicConfig(
    format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
    datefmt="%Y-%m-%d %H:%M:%S",
    level="INFO",
    stream=sys.stdout,
)
logger = logging.getLogger("fairseq_cli.train")


def get_parser():
    p = argparse.ArgumentParser()
    p.add_argument("data", nargs="?", default="data-bin")
    p.add_argument("--save-dir", default="checkpoints")
    p.add_argument("--restore-file", default="checkpoint_last.pt")
    p.add_argument("--max-epoch", type=int, default=40)
    p.add_argument("--lr", type=float, default=0.1)
    return p


def save_checkpoint(args, model, opt, epoch):
    os.makedirs(args.save_dir, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": epoch}
    filename = os.path.join(args.save_dir, "checkpoint{}.pt".format(epoch))
    torch.save(state, filename + ".tmp")
    os.rename(filename + ".tmp", filename)
    last = os.path.join(args.save_dir, "checkpoint_last.pt")
    torch.save(state, last + ".tmp")
    os.rename(last + ".tmp", last)


def load_checkpoint(args, model, opt):
    path = os.path.join(args.save_dir, args.restore_file)
    if os.path.exists(path):
        state = torch.load(path, weights_only=False)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        logger.info("Loaded checkpoint {} (epoch {} @ {} updates)".format(path, state["epoch"], state["epoch"] * 10))
        return state["epoch"] + 1
    return 1


def main(args):
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), args.lr)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    epoch = load_checkpoint(args, model, opt)
    while epoch <= args.max_epoch:
        for _ in range(10):
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            time.sleep(0.05)
        logger.info(
            "epoch {:03d} | loss {:.3f} | ppl {:.2f} | wps 123.4 | num_updates {} | lr {}".format(
                epoch, loss.item(), 2 ** loss.item(), epoch * 10, args.lr
            )
        )
        save_checkpoint(args, model, opt, epoch)
        epoch += 1
    logger.info("done training in 10.0 seconds")


if __name__ == "__main__":
    main(get_parser().parse_args())
