import argparse

from . import config
from .engine import Engine


def main():
    ap = argparse.ArgumentParser("segmenter.train")
    ap.add_argument("-c", "--config", default="configs/base.yaml")
    args = ap.parse_args()
    Engine(config.load(args.config)).fit()


if __name__ == "__main__":
    main()
