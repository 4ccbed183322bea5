import argparse, logging, time
import torch
from onmt.opts import train_opts
from onmt.model_saver import build_model_saver

logger = logging.getLogger()


def train(opt):
    logging.basicConfig(format="[%(asctime)s %(levelname)s] %(message)s", level=logging.INFO)
    model = torch.nn.Linear(8, 8)
    optim = torch.optim.Adam(model.parameters())
    step = 0
    if opt.train_from:
        logger.info("Loading checkpoint from %s" % opt.train_from)
        checkpoint = torch.load(opt.train_from, map_location=lambda storage, loc: storage)
        model.load_state_dict(checkpoint["model"])
        optim.load_state_dict(checkpoint["optim"])
        step = checkpoint["step"]
    saver = build_model_saver(opt, model, optim)
    while step < opt.train_steps:
        step += 1
        x = torch.randn(4, 8)
        loss = (model(x) - x).pow(2).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        time.sleep(0.15)
        logger.info(
            "Step %2d/%5d; acc: %6.2f; ppl: %5.2f; xent: %4.2f; lr: %7.5f; %3.0f/%3.0f tok/s; %6.0f sec"
            % (step, opt.train_steps, 50.0, loss.exp(), loss, 1e-3, 3000, 2900, step)
        )
        if step % opt.save_checkpoint_steps == 0:
            saver.save(step)


def main():
    parser = argparse.ArgumentParser(description="train.py")
    train_opts(parser)
    opt, unknown = parser.parse_known_args()
    train(opt)
