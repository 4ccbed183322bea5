"""Trains Mask R-CNN on one rank or many; evicted at any moment, it resumes after the last step of all ranks."""

import json
import time

import torch
from coco import Scenes, find
from evaluate import precision
from learn import Learner, Pace, loader_of
from network import save
from problem import told
from ranks import RANK, WORLD, gather, together
from settings import parser

import stoker
from stoker.checkpoint import Checkpoint


def train() -> None:
    args = parser.parse_args()
    folder = find(args.data, args.cache.expanduser())
    scenes = Scenes(folder, "train", args.images, here_only=args.sharded)
    judged = Scenes(folder, "val", args.images)
    loader, sampler = loader_of(scenes, args)
    learner = Learner(len(scenes.classes), args.epochs * len(loader), args)
    state = Checkpoint(
        model=learner.model, optimizer=learner.optimizer, schedule=learner.schedule, scaler=learner.scaler
    )
    if RANK == 0:
        print(
            f"{len(scenes)} images to learn from, {len(judged)} to judge by, {len(scenes.classes)} kinds, {WORLD} ranks"
        )
    pace = Pace(args.batch_size * WORLD)
    for epoch in state.epochs(args.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        for batch in state.batches(loader):
            pace.batch_is_here()
            state["loss"] = learner.step(batch)["loss"]  # an eviction may leave no batch of this epoch
            pace.step_is_done()
            state.step()
        if (epoch + 1) % args.evaluate_every and epoch + 1 < args.epochs:
            continue
        with torch.random.fork_rng(devices=[]):
            found = precision(learner.network, judged)
        state.report(loss=state["loss"], **found, **pace.metrics())
        if RANK == 0:
            took = time.perf_counter() - began
            said = f"loss {state['loss']:.4f}  box_ap {found['box_ap']:.4f}  mask_ap {found['mask_ap']:.4f}"
            print(f"Epoch {epoch + 1}/{args.epochs}  {said}  in {took:.1f} s", flush=True)
        if any(gather(stoker.should_stop())):  # all ranks stop, or none
            break
    if RANK == 0:
        names = [scenes.classes[number] for number in sorted(scenes.classes)]
        path = args.output_dir / "model.safetensors"
        save(path, learner.network.state_dict(), names, args.backbone, args.image_size)
        result = {name: round(value, 6) for name, value in state.metrics.items() if name.endswith("_ap")}
        (args.output_dir / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"the model is {path}")


if __name__ == "__main__":
    with told(), together():
        train()
