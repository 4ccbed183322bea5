"""Full definition of a GPT Language Model, all of it in this single file."""

import torch


class GPT(torch.nn.Module):
    pass
