"""The back end that matplotlib finds in a notebook's process: `plt.show()` puts figures into the notebook's copy."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from stoker.notebooks.showing import takers

# By name: a notebook that draws has matplotlib, and nothing else here needs it.
FigureCanvas: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
FigureManager: Any = importlib.import_module("matplotlib.backend_bases").FigureManagerBase


def show(*_: Any, **__: Any) -> None:
    """Also called behind every cell, as notebooks do: figures that nobody shows are shown all the same."""
    pyplot = sys.modules["matplotlib.pyplot"]
    for number in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png", bbox_inches="tight")
        for take in takers:
            take(drawn.getvalue())
    pyplot.close("all")
