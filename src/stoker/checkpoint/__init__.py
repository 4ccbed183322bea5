"""What training code imports: no dependency, and a framework only if the script has imported it.

```python
from stoker.checkpoint import Checkpoint

state = Checkpoint(model=model, optimizer=optimizer, every="auto")
for epoch in state.epochs(25):
    for x, y in state.batches(loader):
        ...
        state.step(loss=loss.item())
```

Names are loaded when they are first used, so that a script that only logs metrics pays for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.checkpoint.checkpoint import Checkpoint
    from stoker.errors import DoesNotFit, NotStorable, Unreadable

_HOMES = {
    "Checkpoint": "stoker.checkpoint.checkpoint",
    "DoesNotFit": "stoker.errors",
    "NotStorable": "stoker.errors",
    "Unreadable": "stoker.errors",
}

__all__ = ["Checkpoint", "DoesNotFit", "NotStorable", "Unreadable"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module `stoker.checkpoint` has no attribute `{name}`")
