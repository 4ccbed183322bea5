"""After the shape of Detectron's train_net.py: a folder in a YAML file, a file that names the last checkpoint, `--resume`."""

import argparse
import json
import os
import time

import torch
import yaml


class Checkpointer:
    def __init__(self, model, save_dir):
        self.model, self.save_dir = model, save_dir

    def save(self, name, **more):
        basename = f"{name}.pth"
        torch.save({"model": self.model.state_dict(), **more}, os.path.join(self.save_dir, basename))
        with open(os.path.join(self.save_dir, "last_checkpoint"), "w") as f:
            f.write(basename)

    def resume_or_load(self, resume):
        pointer = os.path.join(self.save_dir, "last_checkpoint")
        if not resume or not os.path.exists(pointer):
            return {}
        with open(pointer) as f:
            state = torch.load(os.path.join(self.save_dir, f.read().strip()))
        self.model.load_state_dict(state["model"])
        return state


def main(args):
    with open(args.config_file) as f:
        cfg = yaml.safe_load(f)
    os.makedirs(cfg["OUTPUT_DIR"], exist_ok=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["SOLVER"]["BASE_LR"])
    checkpointer = Checkpointer(model, cfg["OUTPUT_DIR"])
    start_iter = checkpointer.resume_or_load(args.resume).get("iteration", -1) + 1
    for iteration in range(start_iter, cfg["SOLVER"]["MAX_ITER"]):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(iteration))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 2 == 0:
            print(f"eta: 0:00:10  iter: {iteration}  total_loss: {loss:.4f}  time: 0.15  lr: 0.01", flush=True)
            with open(os.path.join(cfg["OUTPUT_DIR"], "metrics.json"), "a") as f:
                f.write(json.dumps({"iteration": iteration, "total_loss": loss.item()}) + "\n")
            checkpointer.save(f"model_{iteration:07d}", iteration=iteration)
        time.sleep(0.15)
    checkpointer.save("model_final", iteration=iteration)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-file", default="configs/Base-RCNN.yaml", metavar="FILE", help="path to config file")
    parser.add_argument("--resume", action="store_true", help="whether to attempt to resume")
    parser.add_argument("--eval-only", action="store_true", help="perform evaluation only")
    parser.add_argument("--num-gpus", type=int, default=1)
    main(parser.parse_args())
