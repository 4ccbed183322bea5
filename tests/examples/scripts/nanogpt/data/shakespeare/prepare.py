"""Writes train.bin beside itself."""

import os

import numpy as np

np.arange(400, dtype=np.uint16).__mod__(32).tofile(os.path.join(os.path.dirname(__file__), "train.bin"))
