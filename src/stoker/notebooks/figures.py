"""matplotlib's back end in a notebook's process: `plt.show()` adds figures to the notebook's copy."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from stoker.notebooks.running import takers

# Imported by name: a notebook that plots has matplotlib, and nothing else here needs it.
FigureCanvas: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
FigureManager: Any = importlib.import_module("matplotlib.backend_bases").FigureManagerBase


def show(*_: Any, **__: Any) -> None:
    """Also called after every cell, as in Jupyter: open figures are shown even without `show()`."""
    pyplot = sys.modules["matplotlib.pyplot"]
    for number in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png", bbox_inches="tight")
        for take in takers:
            take(drawn.getvalue())
    pyplot.close("all")
