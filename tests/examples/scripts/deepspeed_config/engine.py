"""After the shape of deepspeed: initialize, save_checkpoint(dir, tag) and load_checkpoint(dir)."""

import json
import os

import torch


def add_config_arguments(parser):
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="Enable DeepSpeed (helper flag for user code, no impact on DeepSpeed backend)")
    group.add_argument("--deepspeed_config", default=None, type=str, help="DeepSpeed json configuration file.")
    return parser


class Engine:
    def __init__(self, model, config):
        self.module, self.global_steps = model, 0
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config["optimizer"]["params"]["lr"])
        self.micro = config["train_batch_size"]

    def __call__(self, x): return self.module(x)
    def backward(self, loss): loss.backward()
    def step(self):
        self.optimizer.step(); self.optimizer.zero_grad(); self.global_steps += 1

    def save_checkpoint(self, save_dir, tag=None, client_state={}):
        tag = tag or f"global_step{self.global_steps}"
        os.makedirs(os.path.join(save_dir, str(tag)), exist_ok=True)
        torch.save({"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "global_steps": self.global_steps, **client_state},
                   os.path.join(save_dir, str(tag), "mp_rank_00_model_states.pt"))
        with open(os.path.join(save_dir, "latest"), "w") as fd:
            fd.write(str(tag))

    def load_checkpoint(self, load_dir, tag=None):
        if tag is None:
            latest_path = os.path.join(load_dir, "latest")
            if not os.path.isfile(latest_path):
                return None, {}
            with open(latest_path) as fd:
                tag = fd.read().strip()
        path = os.path.join(load_dir, str(tag), "mp_rank_00_model_states.pt")
        state = torch.load(path)
        self.module.load_state_dict(state.pop("module")); self.optimizer.load_state_dict(state.pop("optimizer"))
        self.global_steps = state["global_steps"]
        return path, state


def initialize(args, model):
    if args.deepspeed_config is None:
        raise AssertionError("DeepSpeed requires --deepspeed_config to specify configuration file")
    config = json.load(open(args.deepspeed_config))
    return Engine(model, config), None, None, None
