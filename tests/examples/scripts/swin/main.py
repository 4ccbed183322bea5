import argparse
import datetime
import os
import time
import torch
from config import get_config
from logger import create_logger
from utils import auto_resume_helper, load_checkpoint, save_checkpoint


def parse_option():
    parser = argparse.ArgumentParser('Swin Transformer training and evaluation script', add_help=False)
    parser.add_argument('--cfg', type=str, default="configs/swin_tiny.yaml", metavar="FILE", help='path to config file')
    parser.add_argument('--batch-size', type=int, help="batch size for single GPU")
    parser.add_argument('--data-path', type=str, help='path to dataset')
    parser.add_argument('--resume', help='resume from checkpoint')
    parser.add_argument('--output', default='output', type=str, metavar='PATH',
                        help='root of output folder, the full path is <output>/<model_name>/<tag> (default: output)')
    parser.add_argument('--tag', help='tag of experiment')
    parser.add_argument('--eval', action='store_true', help='Perform evaluation only')
    args, unparsed = parser.parse_known_args()
    config = get_config(args)
    return args, config


def main(config):
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    max_accuracy = 0.0
    if config.TRAIN.AUTO_RESUME:
        resume_file = auto_resume_helper(config.OUTPUT, logger)
        if resume_file:
            config.MODEL.RESUME = resume_file
            logger.info(f'auto resuming from {resume_file}')
        else:
            logger.info(f'no checkpoint found in {config.OUTPUT}, ignoring auto resume')
    if config.MODEL.RESUME:
        max_accuracy = load_checkpoint(config, model, optimizer, logger)
    logger.info("Start training")
    for epoch in range(config.TRAIN.START_EPOCH, config.TRAIN.EPOCHS):
        for idx in range(4):
            time.sleep(0.07)
            loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            logger.info(
                f'Train: [{epoch}/{config.TRAIN.EPOCHS}][{idx}/4]\t'
                f'eta {datetime.timedelta(seconds=12)} lr {1e-3:.6f}\t wd {0.05:.4f}\t'
                f'time {0.07:.4f} ({0.07:.4f})\t'
                f'loss {loss.item():.4f} ({loss.item():.4f})\t'
                f'grad_norm {1.23:.4f} ({1.2:.4f})\t'
                f'mem {0:.0f}MB')
        save_checkpoint(config, epoch, model, max_accuracy, optimizer, logger)
        acc1 = 30.0 + epoch
        logger.info(f' * Acc@1 {acc1:.3f} Acc@5 {acc1 + 20:.3f}')
        max_accuracy = max(max_accuracy, acc1)
        logger.info(f'Max accuracy: {max_accuracy:.2f}%')


if __name__ == '__main__':
    args, config = parse_option()
    os.makedirs(config.OUTPUT, exist_ok=True)
    logger = create_logger(output_dir=config.OUTPUT, name=f"{config.MODEL.NAME}")
    main(config)
