"""The loop, which knows nothing of files."""

import torch

from mingpt.utils import CfgNode as CN


class Trainer:
    @staticmethod
    def get_default_config():
        return CN(max_iters=120, batch_size=8, learning_rate=3e-4)

    def __init__(self, config, model, data):
        self.config, self.model, self.data, self.iter_num, self.callbacks = config, model, data, 0, {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    def set_callback(self, onevent, callback):
        self.callbacks[onevent] = callback

    def run(self):
        while self.iter_num < self.config.max_iters:
            generator = torch.Generator().manual_seed(self.iter_num)
            at = torch.randint(len(self.data) - 1, (self.config.batch_size,), generator=generator)
            self.loss = torch.nn.functional.cross_entropy(self.model(self.data[at]), self.data[at + 1])
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
            self.iter_num += 1
            self.callbacks["on_batch_end"](self)
