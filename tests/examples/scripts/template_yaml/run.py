"""python run.py configs/base.yaml"""
import sys

import yaml
from lib.trainer import Trainer

if __name__ == "__main__":
    with open(sys.argv[1] if len(sys.argv) > 1 else "configs/base.yaml") as f:
        config = yaml.safe_load(f)
    Trainer(config).train()
