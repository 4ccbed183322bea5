import torch


class Net(torch.nn.Sequential):
    def __init__(self, width):
        super().__init__(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
