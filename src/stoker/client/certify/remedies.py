"""Lines to add to a script, for each way in which resuming fails. Pure text."""

from __future__ import annotations

from collections.abc import Collection

from stoker.client.certify.code import Trait

Lines = tuple[str, ...]


def save(folder: str, torch: bool) -> Lines:
    """To a temporary file first, so that no reader finds an incomplete file."""
    if torch:
        return (
            'state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}',
            f'torch.save(state, "{folder}/last.pt.part")',
            f'os.replace("{folder}/last.pt.part", "{folder}/last.pt")',
        )
    return (
        'state = {"step": step, "weights": weights}',
        f'Path("{folder}/state.json.part").write_text(json.dumps(state))',
        f'os.replace("{folder}/state.json.part", "{folder}/state.json")',
    )


def load(folder: str, torch: bool) -> Lines:
    if torch:
        return (
            f'if os.path.exists("{folder}/last.pt"):',
            f'    saved = torch.load("{folder}/last.pt", weights_only=True)',
            '    model.load_state_dict(saved["model"])',
            '    optimizer.load_state_dict(saved["optimizer"])',
            '    first_step = saved["step"] + 1',
        )
    return (
        f'if os.path.exists("{folder}/state.json"):',
        f'    saved = json.loads(Path("{folder}/state.json").read_text())',
        '    weights, first_step = saved["weights"], saved["step"] + 1',
    )


def everything(torch: bool) -> Lines:
    """The library that saves all state; for PyTorch loops."""
    if not torch:
        return ()
    return (
        "from stoker.checkpoint import Checkpoint",
        'state = Checkpoint(model=model, optimizer=optimizer, every="auto")',
    )


def callback(has: Collection[Trait]) -> Lines:
    """For frameworks: our callback, which saves all state; empty for other scripts."""
    if Trait.KERAS in has:
        return (
            "from stoker.checkpoint.keras import StokerCallback",
            "model.fit(…, callbacks=[StokerCallback()])",
        )
    if Trait.LIGHTNING in has:
        return (
            "from stoker.checkpoint.lightning import StokerCallback",
            "Trainer(…, callbacks=[StokerCallback()])",
        )
    if Trait.HUGGING_FACE in has:
        return (
            "from stoker.checkpoint.huggingface import StokerCallback",
            "StokerCallback(trainer)   # before trainer.train()",
        )
    return ()


def hook() -> Lines:
    return ("exact: true   # in stoker.yaml: saves random states and loader positions with each file",)


def atomic(folder: str, torch: bool) -> Lines:
    name = "last.pt" if torch else "state.json"
    write = "torch.save(state, part)" if torch else "Path(part).write_text(json.dumps(state))"
    return (
        f'part = "{folder}/{name}.part"',
        write,
        f'os.replace(part, "{folder}/{name}")  # atomic',
    )


def random_state(torch: bool, numpy: bool) -> Lines:
    lines = ['state["random"] = random.getstate()                 # when saving']
    if numpy:
        arrays = "            # torch.load then requires weights_only=False" if torch else ""
        lines.append(f'state["numpy"] = np.random.get_state(){arrays}')
    if torch:
        lines.append('state["torch"] = torch.get_rng_state()              # torch.cuda.get_rng_state_all() on GPUs')
    lines += [
        'version, numbers, gauss = saved["random"]           # after loading',
        "random.setstate((version, tuple(numbers), gauss))   # JSON makes lists of tuples",
    ]
    if numpy:
        lines.append('np.random.set_state(saved["numpy"])')
    if torch:
        lines.append('torch.set_rng_state(saved["torch"])')
    return tuple(lines)


def data_order(torch: bool) -> Lines:
    if torch:
        return (
            "generator = torch.Generator().manual_seed(seed + epoch)       # the order depends only on the epoch",
            "order = torch.randperm(len(dataset), generator=generator).tolist()[batches_done * batch_size :]",
            "loader = DataLoader(dataset, batch_size, sampler=order)       # continues after the batches done",
        )
    return (
        "order = list(range(len(data)))",
        "random.Random(seed + epoch).shuffle(order)   # the order depends only on the epoch",
        "for index in order[position:]: ...           # save `epoch` and `position`, and continue there",
    )


def optimizer_state(torch: bool) -> Lines:
    if torch:
        return (
            'state["optimizer"] = optimizer.state_dict()         # when saving',
            'optimizer.load_state_dict(saved["optimizer"])       # after loading',
        )
    return (
        'state["velocity"] = velocity     # when saving',
        'velocity = saved["velocity"]     # after loading',
    )


def schedule_state() -> Lines:
    return (
        'state["scheduler"] = scheduler.state_dict()         # when saving',
        'scheduler.load_state_dict(saved["scheduler"])       # after loading',
    )


def weights(torch: bool) -> Lines:
    return ('model.load_state_dict(saved["model"])',) if torch else ('weights = saved["weights"]',)


def memory() -> Lines:
    return (
        'state["history"] = history       # when saving: everything that is written at the end',
        'history = saved["history"]       # after loading',
    )


def outputs_kept(folder: str, outputs: str) -> Lines:
    return (f"checkpoints: [{folder}, {outputs}]   # in stoker.yaml: `{outputs}` is restored, too",)


def determinism(torch: bool, numpy: bool) -> Lines:
    lines = ["random.seed(0)"]
    if numpy:
        lines.append("np.random.seed(0)")
    if torch:
        lines += ["torch.manual_seed(0)", "torch.use_deterministic_algorithms(True)"]
    return (*lines, "for name in sorted(names): ...   # sets and folder listings have no fixed order")
