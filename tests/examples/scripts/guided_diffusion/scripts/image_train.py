"""
Train a diffusion model on images.
"""
import argparse
from improved_diffusion import logger
from improved_diffusion.script_util import add_dict_to_argparser
from improved_diffusion.train_util import TrainLoop


def main():
    args = create_argparser().parse_args()
    logger.configure()
    logger.log("creating model and diffusion...")
    logger.log("training...")
    TrainLoop(lr=args.lr, log_interval=args.log_interval, save_interval=args.save_interval,
              resume_checkpoint=args.resume_checkpoint, steps=args.lr_anneal_steps).run_loop()


def create_argparser():
    defaults = dict(
        lr=1e-4,
        lr_anneal_steps=200,
        log_interval=2,
        save_interval=4,
        resume_checkpoint="",
        use_fp16=False,
    )
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, defaults)
    return parser


if __name__ == "__main__":
    main()
