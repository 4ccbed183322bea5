"""Every setting, in one line each."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser(description="Finds objects in photos, and the pixels that belong to each of them.")
# data
parser.add_argument("--data", default="drawn")  # or a folder with images/ and annotations/, as prepare.py makes them
parser.add_argument("--images", type=Path)  # the images alone, if they are elsewhere, such as in a dataset of their own
parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-mask-rcnn"))  # for what is drawn
parser.add_argument("--sharded", action="store_true")  # this node has a part of the images
parser.add_argument("--workers", type=int, default=0)  # processes that read images
# network
parser.add_argument("--backbone", default="small")  # or resnet18, resnet50, … of torchvision, mobilenet_v3_large
parser.add_argument("--pretrained", action="store_true")  # its weights of ImageNet, downloaded at the first use
parser.add_argument("--image_size", type=int, default=128)  # pixels of the shorter side; the workflow takes 800
# training
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch_size", type=int, default=2)  # images of one rank in one step
parser.add_argument("--accumulate", type=int, default=1)  # parts that a batch is computed in, if memory is short
parser.add_argument("--learning_rate", type=float, default=0.08)  # for 16 images in a step; scaled with their number
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight_decay", type=float, default=1e-4)
parser.add_argument("--warm_up", type=int, default=50)  # steps until the learning rate is reached
parser.add_argument("--decay_at", type=float, nargs="*", default=[0.67, 0.9])  # shares of the training, a tenth each
parser.add_argument("--clip", type=float, default=5.0)  # the longest gradient
parser.add_argument("--amp", action="store_true")  # mixed precision: float16 on a GPU, bfloat16 elsewhere
parser.add_argument("--evaluate_every", type=int, default=3)  # epochs
parser.add_argument("--seed", type=int, default=1)
# end
parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
