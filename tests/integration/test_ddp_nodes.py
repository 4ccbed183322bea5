"""A training of two files as PyTorch's tutorials have them, with DistributedDataParallel on four nodes: unchanged and
without a line of Stoker, it ends with the same bits after two evictions."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from shell import Shell
from test_gangs import agent_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
EPOCHS = 80

DATA = """
    import torch
    from torch.utils.data import Dataset


    class Rows(Dataset):
        def __init__(self, size):
            generator = torch.Generator().manual_seed(7)
            self.rows = [(torch.rand(20, generator=generator), torch.rand(1, generator=generator)) for _ in range(size)]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]
"""

# The first process of each node saves, as in the tutorial for several nodes.
TRAIN = """
    import os
    import sys
    import time

    import torch
    import torch.nn.functional as F
    from datautils import Rows
    from torch.distributed import destroy_process_group, init_process_group
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler


    class Trainer:
        def __init__(self, model, loader, optimizer, path):
            self.local_rank, self.rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
            self.model, self.loader, self.optimizer, self.path = model, loader, optimizer, path
            self.epochs_run = 0
            if os.path.exists(path):
                snapshot = torch.load(path)
                self.model.load_state_dict(snapshot["MODEL_STATE"])
                self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
                self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"[{self.rank}] starts at epoch {self.epochs_run}", flush=True)
            self.model = DDP(self.model)

        def train(self, epochs):
            for epoch in range(self.epochs_run, epochs):
                self.loader.sampler.set_epoch(epoch)
                for source, targets in self.loader:
                    self.optimizer.zero_grad()
                    F.mse_loss(self.model(source), targets).backward()
                    self.optimizer.step()
                print(f"[{self.rank}] epoch: {epoch}", flush=True)
                time.sleep(0.5)
                if self.local_rank == 0:
                    state = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                    torch.save(state | {"OPTIMIZER_STATE": self.optimizer.state_dict()}, self.path)


    if __name__ == "__main__":
        init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1))
        rows = Rows(512)
        loader = DataLoader(rows, batch_size=32, shuffle=False, sampler=DistributedSampler(rows))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        trainer = Trainer(model, loader, optimizer, "snapshot.pt")
        trainer.train(int(sys.argv[1]))
        os.makedirs("outputs", exist_ok=True)
        weights = b"".join(value.numpy().tobytes() for value in trainer.model.module.state_dict().values())
        open(f"outputs/{trainer.rank}.bin", "wb").write(weights)
        destroy_process_group()
"""


def weights(shell: Shell, run: str) -> bytes:
    """Of all ranks, which have the same."""
    shell.wait_for(lambda: shell.facts(run)["landed"], f"the outputs of {run}")
    found = sorted((shell.folder / "outputs" / run).rglob("*.bin"))
    assert [path.name for path in found] == [f"{rank}.bin" for rank in range(4)]
    (same,) = {path.read_bytes() for path in found}
    return same


def saved(shell: Shell, attempt: int) -> dict[str, Any]:
    """The run, once this attempt has committed two checkpoints."""
    sets: list[Path] = []

    def look() -> bool:
        assert shell.facts("hit-1")["state"] not in ("failed", "succeeded"), shell.facts("hit-1")
        run_id = shell.facts("hit-1")["id"]
        sets[:] = (shell.home / "store" / "runs" / run_id).glob(f"checkpoints/sets/{attempt:04}-*.json")
        return len(sets) >= 2

    shell.wait_for(look, f"checkpoints of attempt {attempt}", 240)
    return shell.facts("hit-1")


def test_a_training_of_two_files_on_four_nodes_ends_with_the_same_bits_after_two_evictions(shell: Shell) -> None:
    shell.write("datautils.py", DATA)
    shell.write("train.py", TRAIN)
    shell.job(
        f"python train.py {EPOCHS}", nodes=4, exact=True, checkpoints=["snapshot.pt"], env={"OMP_NUM_THREADS": "1"}
    )
    shell.stoker("run", "--set", "name=calm", "--set", "exact=false", patience_s=300)
    shell.stoker("run", "--set", "name=hit", "--detach")
    saved(shell, 1)
    shell.stoker("evict", "hit-1", "--notice", "5s")
    key = saved(shell, 2)["attempts"][-1]["peers"][1]["key"]
    os.kill(agent_of(shell, key), signal.SIGKILL)
    shell.wait_for(lambda: shell.facts("hit-1")["state"] in ("failed", "succeeded"), "the end", 300)
    facts = shell.facts("hit-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "lost", "ended"]
    said = shell.stoker("logs", "hit-1").stdout
    starts = [int(line.rsplit(" ", 1)[1]) for line in said.splitlines() if "starts at epoch" in line]
    assert len(starts) == 12 and min(starts[4:]) > 0, said
    assert weights(shell, "hit-1") == weights(shell, "calm-1")
