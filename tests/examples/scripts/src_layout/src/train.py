"""A script in src/ that is started from above, with a YAML file of settings and modules beside it."""

import argparse
import logging
from pathlib import Path

import yaml
from engine import Engine
from models.net import Net

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--config", type=Path, default=Path("configs/train.yaml"))
    args = parser.parse_args()
    config = yaml.safe_load(args.config.read_text())
    engine = Engine(Net(config["width"]), config)
    engine.fit()


if __name__ == "__main__":
    main()
