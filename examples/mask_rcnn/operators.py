"""What detection networks need from torchvision's compiled operators, for a PyTorch that they were not compiled for.

Import this before torchvision. Where its own operators load, nothing is replaced. Otherwise `nms` and `roi_align` are
written with PyTorch's operators: the same boxes, and features that differ by at most 3e-5.
"""

import ctypes
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

SAMPLES = 2  # points of a cell each way, where a network leaves it to the operator


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The best box of each heap, best first."""
    order = scores.argsort(descending=True, stable=True)
    corners = boxes[order].detach()
    area = (corners[:, 2:] - corners[:, :2]).prod(1)
    first = torch.maximum(corners[:, None, :2], corners[:, :2])
    last = torch.minimum(corners[:, None, 2:], corners[:, 2:])
    shared = (last - first).clamp(min=0).prod(2)
    covers = (shared / (area[:, None] + area - shared) > iou_threshold).numpy()
    kept = torch.ones(len(order), dtype=torch.bool)
    left = kept.numpy()
    for number in range(len(left)):
        if left[number]:
            left[number + 1 :] &= ~covers[number, number + 1 :]
    return order[kept]


def roi_align(
    features: Tensor, regions: Tensor, scale: float, rows: int, columns: int, sampling: int, aligned: bool
) -> Tensor:
    """The features of each region (image, left, top, right, bottom) on a grid of one size."""
    samples = sampling if sampling > 0 else SAMPLES
    corners = regions[:, 1:] * scale - (0.5 if aligned else 0.0)
    sides = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sides = sides.clamp(min=1)
    high, wide = features.shape[2:]
    x, inside_x = _places(corners[:, 0], sides[:, 0], columns * samples, wide)
    y, inside_y = _places(corners[:, 1], sides[:, 1], rows * samples, high)
    found = features.new_zeros(len(regions), features.shape[1], rows, columns)
    parts, places = [found[:0]], [regions.new_zeros(0, dtype=torch.long)]
    for image in range(len(features)):
        mine = (regions[:, 0] == image).nonzero().flatten()
        if not len(mine):
            continue
        shape = (len(mine), y.shape[1], x.shape[1])
        grid = torch.stack((x[mine][:, None].expand(shape), y[mine][:, :, None].expand(shape)), -1)
        flat = grid.reshape(1, -1, shape[2], 2)
        seen = functional.grid_sample(features[image : image + 1], flat, padding_mode="border", align_corners=False)
        seen = seen.reshape(features.shape[1], *shape).transpose(0, 1)
        inside = (inside_y[mine][:, :, None] & inside_x[mine][:, None])[:, None]
        parts.append(functional.avg_pool2d(seen * inside, samples))
        places.append(mine)
    return torch.cat(parts)[torch.cat(places).argsort()]


def _places(start: Tensor, length: Tensor, count: int, most: int) -> tuple[Tensor, Tensor]:
    """`count` points along each side, as `grid_sample` counts them, and which of them are on the features."""
    shares = (torch.arange(count, dtype=start.dtype) + 0.5) / count
    at = start[:, None] + length[:, None] * shares
    return (2 * at.clamp(0, most - 1) + 1) / most - 1, (at >= -1) & (at <= most)


def compiled() -> bool:
    """Whether torchvision's own operators load with this PyTorch."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        raise SystemExit("error: torchvision is not installed; try: pip install -r requirements.txt")
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        library = Path(package.origin).with_name(f"_C{ending}")
        if library.exists():
            try:
                ctypes.CDLL(str(library))
                return True
            except OSError:
                return False
    return False


def define() -> torch.library.Library:
    """Registers them under torchvision's names."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    overlap = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    library.define(f"nms{overlap}")
    library.define(f"qnms{overlap}")  # torchvision describes it, and nobody calls it here
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    for key in ("CPU", "AutogradCPU"):  # both: without gradients the second one is not asked
        library.impl("nms", nms, key)
        library.impl("roi_align", roi_align, key)
    return library


def announce() -> None:
    """torchvision looks for its own file only, once for each module."""
    import torchvision  # it describes the operators that are defined by now

    for name in (torchvision.extension.__name__, torchvision.ops.RoIAlign.__module__):
        vars(sys.modules[name])["_has_ops"] = lambda: True


if not compiled():
    LIBRARY = define()  # kept: its operators go with it
    announce()
