"""The GPUs of Azure's sizes: the list counts a sixth of an A10 as one, and names neither vendor nor model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# A size's name contains its GPU: `Standard_NC24ads_A100_v4`. Older names do not.
_NAMED = re.compile(r"_(A100|H100|H200|GB200|GB300|MI300X|RTXPRO6000BSE|A10|T4|L40S?|V620)(?:_|$)")
_SERIES = {
    "NC": {"": "K80", "v2": "P100", "v3": "V100"},
    "ND": {"": "P40", "v2": "V100", "v4": "A100"},
    "NV": {"": "M60", "v2": "M60", "v3": "M60", "v4": "MI25"},
}
_OLD = re.compile(r"Standard_(N[CDV])\d+\w*?(?:_(v\d))?$")
_AMD = ("MI25", "MI300X", "V620")
# vCPUs of the sizes with less than one GPU: the A10 is sold in sixths, the others in eighths and quarters.
_PARTS = {
    "A10": {6: Fraction(1, 6), 12: Fraction(1, 3), 18: Fraction(1, 2)},
    "MI25": {4: Fraction(1, 8), 8: Fraction(1, 4), 16: Fraction(1, 2)},
    "V620": {8: Fraction(1, 4), 16: Fraction(1, 2)},
}
_RETIRED = re.compile(r"Standard_(NC\d+r?s?(_v[23])?|ND\d+r?s?(_v2)?|NV\d+(as)?(_v[24])?|NV\d+s_v[23])(_Promo)?$")
# The HPC image has a driver for these, and none that works for V100 and A10.
_IN_IMAGE = ("T4", "A100", "H100", "H200")


@dataclass(frozen=True, slots=True)
class Gpus:
    """`share` is the fraction of a physical GPU that each one is."""

    count: int = 0
    model: str = ""
    share: Fraction = Fraction(1)

    @property
    def nvidia(self) -> bool:
        return bool(self.count) and self.model not in _AMD

    @property
    def whole(self) -> int:
        return self.count if self.share == 1 else 0

    @property
    def driver_in_image(self) -> bool:
        return self.model in _IN_IMAGE


def gpus_of(name: str, count: int, cpus: int) -> Gpus:
    """From a size's name and its entry in the list."""
    if not count:
        return Gpus()
    model = model_of(name)
    return Gpus(count, model, _PARTS.get(model, {}).get(cpus, Fraction(1)))


def model_of(name: str) -> str:
    if found := _NAMED.search(name):
        return found[1]
    old = _OLD.match(name)
    return _SERIES[old[1]].get(old[2] or "", "") if old else ""


def retired(name: str) -> bool:
    """Azure has retired these families of GPU VMs, and still lists some of them."""
    return _RETIRED.match(name) is not None
