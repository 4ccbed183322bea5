"""Weights from a file that somebody gives us: read without executing anything in it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.checkpoint import safetensors
from stoker.checkpoint.leaves import make
from stoker.checkpoint.reading import mapped, open_verified
from stoker.checkpoint.spreading import together
from stoker.errors import CheckpointRefused


def load_weights(path: str | Path, part: str = "model") -> Any:
    """A `state_dict` from a checkpoint folder (that of its `part`), a `.safetensors` file, or a file of `torch.save`.
    What was spread over ranks is put together.

    A file of `torch.save` may hold tensors and plain containers; one that needs more is refused.
    """
    path = Path(path)
    if path.is_dir():
        opened = open_verified(path)
        ranks = [opened.part(rank) for rank in range(opened.manifest.ranks)]
        first = next((one for one in ranks if one), None)
        if first is None or part not in first.form["parts"]:
            raise CheckpointRefused(f"{path} holds no `{part}`", hint="see its state.json for what it holds")

        def whole(words: Any, _: Any) -> Any:
            if None in ranks:
                raise CheckpointRefused(f"{path} holds the parts of one node, and its tensors are spread over several")
            return together(words, [rank.value(words["of"]) for rank in ranks if rank])

        return first.value(first.form["parts"][part], whole=whole)
    if path.suffix == ".safetensors":
        return {name: make(leaf, data) for name, (leaf, data) in safetensors.places(mapped(path)).items()}
    torch = import_module("torch")
    pickle = import_module("pickle")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointRefused(
            f"{path} holds more than tensors and plain containers, and reading it would execute what is in it: "
            f"{str(error).splitlines()[0]}",
            hint='if you trust whoever made it, convert it once: `python -c "import torch; torch.save('
            f"torch.load('{path}', weights_only=False).state_dict(), 'weights.pt')\"`",
        ) from None
