"""Every form of training with DistributedDataParallel: killed and resumed, it ends with the same bits.

One process trains all forms in turn, so that four starts are enough for all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import rankgroup

TRAIN = """
import contextlib, hashlib, json, os
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
resumed, batch, steps = os.path.exists("checkpoints"), 3, 14


class Net(torch.nn.Module):
    # Defined in another order than it is computed in, so that buckets are arranged anew.
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.last = torch.nn.Linear(40, 2)
        self.middle = torch.nn.ModuleList([torch.nn.Linear(40, 40) for _ in range(3)])
        self.first = torch.nn.Linear(6, 40)
        self.norm = torch.nn.BatchNorm1d(40) if "norm" in form else torch.nn.Identity()
        self.table = torch.nn.Embedding(9, 6, sparse=True) if "sparse" in form else None
        if "unused" in form:
            self.unused = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(6, 40)])
        if "frozen" in form:
            self.middle[1].requires_grad_(False)

    def forward(self, x, step):
        x = x if self.table is None else x + self.table((x.abs() * 3).long().clamp(0, 8)).sum(1)
        x = self.norm(self.first(x))
        if self.form == "unused" and step % 3 == rank % 3:
            x = x + self.unused[1](torch.ones(6))
        for layer in self.middle:
            x = checkpoint(layer, x, use_reentrant=True).relu() if "reentrant" in self.form else layer(x).relu()
        return self.last(x)


def wrapped(form, cap=0.01):
    options = {"bucket_cap_mb": cap, "static_graph": "static" in form, "find_unused_parameters": form == "unused"}
    made = DistributedDataParallel(Net(form), gradient_as_bucket_view="view" in form, **options)
    if "hook" in form:
        made.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return made


class Holder:
    # Not a module, but something that knows its state.
    def __init__(self, module):
        self.inside = module

    def state_dict(self):
        return self.inside.state_dict()

    def load_state_dict(self, state):
        self.inside.load_state_dict(state)


def models(form):
    # What the checkpoint is given, and what is trained.
    if form == "bare":
        given = Net(form)
        return {"model": given}, lambda: [DistributedDataParallel(given, bucket_cap_mb=0.01)]
    if form == "held":
        made = wrapped(form)
        return {"model": Holder(made)}, lambda: [made]
    if form == "several":
        made = [wrapped("plain"), wrapped("plain-view")]
        return {"both": torch.nn.ModuleList(made)}, lambda: made
    # Sums in the order of ranks do not depend on buckets, so those who resume have others.
    made = wrapped(form, 0.5 if "any-placement" in form and resumed else 0.01)
    return {"model": made}, lambda: [made]


def trained(form):
    torch.manual_seed(3)
    parts, make = models(form)
    (model,) = parts.values()
    parameters = [one for one in getattr(model, "inside", model).parameters() if one.requires_grad]
    optimizer = (torch.optim.SGD if "sparse" in form else torch.optim.Adam)(parameters, 1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=form == "amp")
    exact = "any-placement" if "any-placement" in form else "same-placement"
    folder = f"checkpoints/{form}"
    state = Checkpoint(optimizer=optimizer, scaler=scaler, **parts, every=4, folder=folder, exact=exact)
    wrappers = make()
    for step in state.range(steps):
        for part in range(2 if "accumulate" in form else 1):
            x = torch.randn(batch, 6, generator=torch.Generator().manual_seed(1000 * rank + 10 * step + part))
            with contextlib.ExitStack() as stack:
                for one in wrappers if "accumulate" in form and part == 0 else ():
                    stack.enter_context(one.no_sync())
                with torch.autocast("cpu", torch.float16, enabled=form == "amp"):
                    loss = sum(one(x, step).square().mean() for one in wrappers)
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if "norm" in form and step % 2:
            with torch.no_grad():
                wrappers[0](x, step), wrappers[0](x, step)  # the second leaves each rank with running means of its own
        digest = hashlib.sha256()
        for tensor in [one for part in wrappers for one in part.state_dict().values()]:
            digest.update(tensor.numpy().tobytes())
        yield f"{form}-{step} {digest.hexdigest()[:16]}-{loss.item().hex()}\\n", state


log = os.open(f"steps-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
turns = {form: trained(form) for form in os.environ["FORMS"].split()}
ended = {}
while turns:
    for form, turn in list(turns.items()):
        line, state = next(turn, (None, None))
        if line is None:
            del turns[form]
            continue
        ended[form] = line
        os.write(log, line.encode())
        state.step()
        if state.steps == 1 and "static" not in form:
            state.save(wait=True)  # before buckets are arranged anew
json.dump(ended, open(f"final-{rank}.json", "w"))
dist.barrier()
"""

FORMS = [
    "plain", "accumulate", "amp", "any-placement", "any-placement-sparse", "any-placement-static", "any-placement-view",
    "bare", "frozen", "held", "hook", "norm", "several", "sparse", "static", "static-reentrant", "static-unused",
    "unused", "view",
]  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.heavy
@pytest.mark.parametrize("world", [3, 4])
def test_every_form_ends_with_the_same_bits(tmp_path: Path, world: int) -> None:
    """Killed after the first step, before buckets are rearranged, and once more in the middle."""
    script, disturbed, env = tmp_path / "train.py", tmp_path / "killed", {"FORMS": " ".join(FORMS)}
    script.write_text(TRAIN, encoding="utf-8")
    ended, killed = rankgroup.ended(world), rankgroup.killed(world)
    assert rankgroup.start(script, tmp_path / "undisturbed", world, env=env) == ended, rankgroup.said(
        tmp_path / "undisturbed"
    )
    for lines in (2 * len(FORMS), 9 * len(FORMS)):
        assert rankgroup.start(script, disturbed, world, env=env, kill_at=lines) == killed, rankgroup.said(disturbed)
    assert rankgroup.start(script, disturbed, world, env=env) == ended, rankgroup.said(disturbed)
    said = rankgroup.said(disturbed)
    static = sum("static" in form for form in FORMS)
    assert said.count("resumed from step-000000001,") == world * (len(FORMS) - static)
    assert said.count("resumed from step-000000006,") == world * (len(FORMS) - static)
    assert said.count("resumed from step-000000005,") == world * static
    assert "rounded differently" not in said
    rankgroup.assert_same(disturbed, tmp_path / "undisturbed", world)
