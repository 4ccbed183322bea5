"""The same as one writes it with PyTorch alone: a file after each epoch, and on from the newest.

There is nothing of Stoker in here. It keeps the script alive by keeping its folder `checkpoints`.
"""

from pathlib import Path

import torch
from coco import Scenes, find
from evaluate import precision
from learn import Learner, loader_of
from network import save
from problem import told
from ranks import RANK, together
from settings import parser

LAST = Path("checkpoints/last.pt")


def resume(learner: Learner) -> int:
    """The number of epochs that are done."""
    if not LAST.exists():
        return 0
    saved = torch.load(LAST, map_location="cpu", weights_only=True)
    learner.network.load_state_dict(saved["network"])
    learner.optimizer.load_state_dict(saved["optimizer"])
    learner.schedule.load_state_dict(saved["schedule"])
    print(f"Resuming from epoch {saved['epochs']}", flush=True)
    return int(saved["epochs"])


def keep(learner: Learner, epochs: int) -> None:
    LAST.parent.mkdir(exist_ok=True)
    state = {
        "network": learner.network.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "schedule": learner.schedule.state_dict(),
        "epochs": epochs,
    }
    torch.save(state, LAST.with_suffix(".new"))
    LAST.with_suffix(".new").replace(LAST)


def train() -> None:
    args = parser.parse_args()
    folder = find(args.data, args.cache.expanduser())
    scenes, judged = Scenes(folder, "train", args.images), Scenes(folder, "val", args.images)
    loader, sampler = loader_of(scenes, args)
    learner = Learner(len(scenes.classes), args.epochs * len(loader), args)
    for epoch in range(resume(learner), args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = learner.step(batch)["loss"]
        if RANK == 0:
            keep(learner, epoch + 1)
            print(f"Epoch {epoch + 1}/{args.epochs} loss: {loss:.4f}", flush=True)
    found = precision(learner.network, judged)
    if RANK == 0:
        print(f"Epoch {args.epochs}/{args.epochs} box_ap: {found['box_ap']:.4f} mask_ap: {found['mask_ap']:.4f}")
        names = [scenes.classes[number] for number in sorted(scenes.classes)]
        save(args.output_dir / "model.safetensors", learner.network.state_dict(), names, args.backbone, args.image_size)


if __name__ == "__main__":
    with told(), together():
        train()
