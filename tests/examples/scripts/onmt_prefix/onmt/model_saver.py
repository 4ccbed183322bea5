import os
import torch
from collections import deque


def build_model_saver(opt, model, optim):
    return ModelSaver(opt.save_model, model, optim, keep_checkpoint=5)


class ModelSaver(object):
    def __init__(self, base_path, model, optim, keep_checkpoint=-1):
        self.base_path = base_path
        self.model, self.optim = model, optim
        self.checkpoint_queue = deque([], maxlen=keep_checkpoint)

    def save(self, step):
        checkpoint = {"model": self.model.state_dict(), "optim": self.optim.state_dict(), "step": step}
        checkpoint_path = "%s_step_%d.pt" % (self.base_path, step)
        torch.save(checkpoint, checkpoint_path)
        if len(self.checkpoint_queue) == self.checkpoint_queue.maxlen:
            todel = self.checkpoint_queue.popleft()
            if os.path.exists(todel):
                os.remove(todel)
        self.checkpoint_queue.append(checkpoint_path)
