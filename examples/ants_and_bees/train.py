"""Teaches a pretrained network your classes of images: the same script on a laptop and on the team's machines."""

import argparse
import copy
import time
from pathlib import Path

import torch
from backbone import DEFAULT, build, save
from images import Images, classes_of, find, middle, read, varied
from problem import told
from torch import nn
from torch.nn import functional

import stoker
from stoker.checkpoint import Checkpoint

parser = argparse.ArgumentParser(description=__doc__)
# data
parser.add_argument("--data", default="drawn")  # or a folder with train/ and val/, and in both a folder for each class
parser.add_argument("--sample", type=int, default=0)  # images of each class to learn from, for a quick look; 0: all
parser.add_argument("--image_size", type=int, default=224)  # pixels each way
parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-ants-and-bees"))  # for what is drawn
# model
parser.add_argument("--backbone", default=DEFAULT)  # or torchvision:resnet18, timm:resnet18, …
parser.add_argument("--train_only", choices=["all", "head"], default="all")  # head: only the new last layer
# training
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--learning_rate", type=float, default=0.005)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--step_epochs", type=int, default=7)  # after each of these the learning rate falls to a tenth
parser.add_argument("--seed", type=int, default=1)
# end
parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
args = parser.parse_args()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def trainable(network: nn.Module) -> list[nn.Parameter]:
    if args.train_only == "head":
        last = list(network.parameters())[-2:]  # weight and bias of the last layer
        network.requires_grad_(False)
        for parameter in last:
            parameter.requires_grad_(True)
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


@torch.inference_mode()
def validate(network: nn.Module, images: Images) -> tuple[float, float]:
    """The mean loss and the share of images that are classified correctly."""
    network.eval()
    loss, right = 0.0, 0
    for pixels, labels in zip(images.pixels.split(64), images.labels.split(64), strict=True):
        scores = network(middle(pixels, args.image_size).to(DEVICE)).cpu()
        loss += functional.cross_entropy(scores, labels, reduction="sum").item()
        right += int((scores.argmax(1) == labels).sum())
    return loss / len(images.labels), right / len(images.labels)


def train() -> None:
    started = time.perf_counter()
    folder = find(args.data, args.cache.expanduser())
    classes = classes_of(folder)
    images, judged = (read(folder / part, classes, args.image_size, args.sample) for part in ("train", "val"))
    print(f"{len(images.labels)} images to learn from, {len(judged.labels)} to validate with: {', '.join(classes)}")
    torch.manual_seed(args.seed)
    network = build(args.backbone, len(classes)).to(DEVICE)
    champion = copy.deepcopy(network)
    optimizer = torch.optim.SGD(trainable(network), args.learning_rate, args.momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, args.step_epochs, 0.1)

    state = Checkpoint(network=network, champion=champion, optimizer=optimizer, schedule=schedule)
    state.setdefault("best_acc", -1.0)
    for epoch in state.epochs(args.epochs):
        network.train()
        chance = torch.Generator().manual_seed(args.seed * 1_000_003 + epoch)
        order = torch.randperm(len(images.labels), generator=chance).split(args.batch_size)
        for number in state.batches(range(len(order))):
            some = order[number]
            parts = torch.Generator().manual_seed((args.seed * 1_000_003 + epoch) * 1_000_003 + number)
            pixels = varied(images.pixels[some], args.image_size, parts).to(DEVICE, memory_format=torch.channels_last)
            loss = functional.cross_entropy(network(pixels), images.labels[some].to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state["loss"] = state.get("loss", 0.0) + loss.item() * len(some)
            state.step()
        schedule.step()
        train_loss, state["loss"] = state["loss"] / len(images.labels), 0.0
        val_loss, val_acc = validate(network, judged)
        state.report(train_loss=train_loss, val_loss=val_loss, val_acc=val_acc)
        print(f"Epoch {epoch + 1}/{args.epochs}  train_loss {train_loss:.4f}  val_acc {val_acc:.4f}", flush=True)
        if val_acc > state["best_acc"]:
            state["best_acc"] = val_acc
            champion.load_state_dict(network.state_dict())
        if stoker.should_stop():  # the run's `stop_when` is reached
            break
    path = args.output_dir / "model.safetensors"
    save(path, champion.state_dict(), classes, args.backbone, args.image_size)
    minutes, seconds = divmod(round(time.perf_counter() - started), 60)
    print(f"Training complete in {minutes}m {seconds}s. Best val_acc {state['best_acc']:.4f}; the model is {path}")


if __name__ == "__main__":
    with told():
        train()
