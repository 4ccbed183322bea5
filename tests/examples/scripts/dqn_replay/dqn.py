import os, pickle, random, time
from collections import deque
import numpy as np
import torch, torch.nn as nn

MODEL_PATH = "dqn_cartpole.pth"
BUFFER_PATH = "replay_buffer.pkl"
EPISODES = 60


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


q = QNet()
opt = torch.optim.Adam(q.parameters(), 1e-3)
memory = deque(maxlen=1000)
episode = 0
epsilon = 1.0
if os.path.exists(MODEL_PATH) and os.path.exists(BUFFER_PATH):
    ck = torch.load(MODEL_PATH)
    q.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    episode = ck["episode"]
    epsilon = ck["epsilon"]
    with open(BUFFER_PATH, "rb") as f:
        memory = pickle.load(f)
    print(f"=> resumed at episode {episode} with {len(memory)} transitions", flush=True)
while episode < EPISODES:
    total = 0.0
    for t in range(20):
        s = np.random.randn(4)
        memory.append((s, random.randrange(2), random.random()))
        total += memory[-1][2]
        batch = random.sample(list(memory), min(16, len(memory)))
        states = torch.tensor(np.array([b[0] for b in batch]), dtype=torch.float32)
        a = torch.tensor([b[1] for b in batch])
        r = torch.tensor([b[2] for b in batch], dtype=torch.float32)
        loss = nn.functional.mse_loss(q(states).gather(1, a[:, None])[:, 0], r)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.015)
    episode += 1
    epsilon *= 0.98
    print(f"Episode {episode}\tTotal reward: {total:.2f}\tEpsilon: {epsilon:.3f}\tLoss: {loss.item():.4f}", flush=True)
    torch.save({"model": q.state_dict(), "opt": opt.state_dict(), "episode": episode, "epsilon": epsilon}, MODEL_PATH)
    with open(BUFFER_PATH, "wb") as f:
        pickle.dump(memory, f)
