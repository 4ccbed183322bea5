import torch.nn as nn


class SimpleDLA(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.l(x)


def test():
    net = SimpleDLA()
    print(net)


if __name__ == "__main__":
    test()
