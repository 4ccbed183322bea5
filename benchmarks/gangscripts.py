"""The scripts of the benchmark `gang`: what a user would write, without a line of Stoker's."""

# Writes when all ranks have met, and ends.
MEET = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(repr(time.time()))
dist.barrier()  # a rank that leaves while others still connect makes them fail
dist.destroy_process_group()
"""

# DistributedDataParallel on gloo. The first rank saves every step; everybody resumes from what it saved.
TRAIN = """
import json, os, sys, time
import torch
import torch.distributed as dist
steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
os.makedirs("checkpoints", exist_ok=True)
start = 0
if os.path.exists("checkpoints/state.pt"):
    saved = torch.load("checkpoints/state.pt")
    model.load_state_dict(saved["model"])
    start = saved["step"]
for step in range(start, steps):
    torch.manual_seed(step)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step + 1}, "checkpoints/part")
        os.replace("checkpoints/part", "checkpoints/state.pt")
        line = json.dumps({"step": step + 1, "loss": loss.item()})
        print(line, flush=True)
        with open("steps.txt", "a") as told:
            told.write(f"{step + 1} {time.time()}\\n")
    time.sleep(pause_s)
dist.destroy_process_group()
"""

# The same shape with the standard library alone: the ranks add numbers at the first one, step by step.
COUNT = """
import json, os, pathlib, socket, struct, sys, time
steps = int(sys.argv[1])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
kept = pathlib.Path("checkpoints/step.txt")
start, value = json.loads(kept.read_text()) if kept.exists() else (0, 1)
lines = []
if rank == 0:
    door = socket.create_server(("", place[1]), backlog=world)
    lines = [door.accept()[0] for _ in range(world - 1)]
else:
    while not lines:
        try:
            lines = [socket.create_connection(place)]
        except ConnectionRefusedError:
            time.sleep(0.05)

def whole(line):
    found = b""
    while len(found) < 8:
        piece = line.recv(8 - len(found))
        if not piece:
            sys.exit("a peer is gone")
        found += piece
    return struct.unpack("!q", found)[0]

for step in range(start, steps):
    if rank == 0:
        value = (value * 31 + sum(map(whole, lines))) % 1_000_003
        for line in lines:
            line.sendall(struct.pack("!q", value))
    else:
        lines[0].sendall(struct.pack("!q", rank + step))
        value = whole(lines[0])
    if rank == 0:
        kept.parent.mkdir(exist_ok=True)
        part = kept.with_suffix(".part"); part.write_text(json.dumps([step + 1, value])); part.replace(kept)
        print(json.dumps({"step": step + 1, "value": value}), flush=True)
    time.sleep(0.05)
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path(f"outputs/{rank}.txt").write_text(str(value))
"""


def counted(steps: int, world: int) -> int:
    """What every rank of `COUNT` has in the end."""
    value = 1
    for step in range(steps):
        value = (value * 31 + sum(rank + step for rank in range(1, world))) % 1_000_003
    return value
