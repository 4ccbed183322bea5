"""After the shape of PyTorch's REINFORCE example: episodes without an end in sight, `--restore` to continue."""

import argparse
import os
import time
from itertools import count

import torch
from torch import nn, optim

parser = argparse.ArgumentParser(description="PyTorch REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.99, metavar="G", help="discount factor (default: 0.99)")
parser.add_argument("--seed", type=int, default=543, metavar="N")
parser.add_argument("--render", action="store_true", help="render the environment")
parser.add_argument("--log-interval", type=int, default=2, metavar="N")
parser.add_argument("--restore", action="store_true", help="restore the policy from the last run")
args = parser.parse_args()

CHECKPOINT_FILE = os.path.join("policies", "policy.pth")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 2)

    def forward(self, x):
        return torch.softmax(self.affine(x), dim=-1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)


def finish_episode(i_episode):
    state = torch.randn(16, 4, generator=torch.Generator().manual_seed(args.seed + i_episode))
    probs = policy(state)
    reward = (state[:, 0] > 0).float()
    loss = -(torch.log(probs[:, 1]) * reward + torch.log(probs[:, 0]) * (1 - reward)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return (probs[:, 1].round() == reward).sum().item()


def main():
    running_reward, first = 10.0, 1
    os.makedirs("policies", exist_ok=True)
    if args.restore:
        saved = torch.load(CHECKPOINT_FILE)
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        running_reward, first = saved["running_reward"], saved["episode"] + 1
    for i_episode in count(first):
        ep_reward = finish_episode(i_episode)
        running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
        time.sleep(0.15)
        if i_episode % args.log_interval == 0:
            print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}", flush=True)
            state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "episode": i_episode}
            torch.save({**state, "running_reward": running_reward}, CHECKPOINT_FILE)
        if i_episode >= 120:
            print(f"Solved! Running reward is now {running_reward}")
            break


if __name__ == "__main__":
    main()
