"""Every setting of a training in one line."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
# data
parser.add_argument("--data", default="drawn")  # or `horses_or_humans`, to be fetched; or a folder of images
parser.add_argument("--image_size", type=int, default=64)  # pixels each way; images are scaled to it
parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-horses"))  # for what is drawn or fetched
# training
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--learning_rate", type=float, default=0.003)
parser.add_argument("--seed", type=int, default=1)
# end
parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
args = parser.parse_args()
