"""Mask R-CNN: a backbone with a feature pyramid, proposals, and heads for boxes, classes and masks."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import operators  # noqa: F401  (before torchvision)
import torch
from problem import Problem
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign

WIDTH = 64  # channels of the small pyramid
SHAPES = (0.75, 1.0, 1.33)


class Model(NamedTuple):
    network: MaskRCNN
    classes: list[str]  # by label, from 1
    backbone: str
    image_size: int


class SmallPyramid(nn.Module):
    """Three levels at 4, 8 and 16 pixels, small enough to learn drawn scenes on two processors in a minute."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.stem = _stage(3, 16)
        self.stages = nn.ModuleList([_stage(16, 32), _stage(32, 64), _stage(64, 96)])
        self.pyramid = FeaturePyramidNetwork([32, 64, 96], WIDTH)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        found, levels = self.stem(pixels), {}
        for number, stage in enumerate(self.stages):
            found = stage(found)
            levels[str(number)] = found
        return dict(self.pyramid(levels))


def _stage(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first, last, stride in ((before, after, 2), (after, after, 1)):
        layers += [nn.Conv2d(first, last, 3, stride, 1, bias=False), nn.GroupNorm(8, last), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def build(backbone: str, classes: int, image_size: int, pretrained: bool = False) -> MaskRCNN:
    """With `classes` kinds of objects, and the background."""
    if backbone == "small":
        return _small(classes + 1, image_size)
    longest = round(image_size * 5 / 3)  # 1333 for 800, as in the paper
    weights = "DEFAULT" if pretrained else None
    try:
        if backbone.startswith("mobilenet"):
            body: Any = mobilenet_backbone(backbone_name=backbone, weights=weights, fpn=True)
        else:
            body = resnet_fpn_backbone(backbone_name=backbone, weights=weights)
    except (ValueError, KeyError):
        known = "small, resnet18, resnet50, resnet101 or mobilenet_v3_large"
        raise Problem(f"backbone {backbone}", None, f"is unknown; expected {known}") from None
    if backbone.startswith("mobilenet"):
        anchors = AnchorGenerator(((32, 64, 128, 256, 512),) * 3, ((0.5, 1.0, 2.0),) * 3)
        return MaskRCNN(body, classes + 1, image_size, longest, rpn_anchor_generator=anchors)
    return MaskRCNN(body, classes + 1, image_size, longest)


def _small(labels: int, image_size: int) -> MaskRCNN:
    levels = ["0", "1", "2"]
    return MaskRCNN(
        SmallPyramid(),
        min_size=image_size,
        max_size=image_size,
        rpn_anchor_generator=AnchorGenerator(((16,), (32,), (64,)), (SHAPES,) * 3),
        box_roi_pool=MultiScaleRoIAlign(levels, 5, 2),
        box_head=TwoMLPHead(WIDTH * 5 * 5, 256),
        box_predictor=FastRCNNPredictor(256, labels),
        mask_roi_pool=MultiScaleRoIAlign(levels, 10, 2),
        mask_head=MaskRCNNHeads(WIDTH, (WIDTH, WIDTH), 1),
        mask_predictor=MaskRCNNPredictor(WIDTH, WIDTH, labels),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_train=100,
        rpn_post_nms_top_n_test=50,
        rpn_batch_size_per_image=64,
        box_batch_size_per_image=64,
        box_detections_per_img=20,
    )


def save(path: Path, weights: dict[str, Tensor], classes: list[str], backbone: str, image_size: int) -> None:
    """A file without code, so that a model can be loaded from anybody."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps({"classes": classes, "backbone": backbone, "image_size": image_size})
    save_file({name: value.contiguous() for name, value in weights.items()}, path, {"model": about})


def load(path: Path) -> Model:
    """Ready to predict."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["model"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
        model = Model(build(about["backbone"], len(about["classes"]), about["image_size"]), **about)
        model.network.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Problem(path, None, f"is not a model of this script: {str(error).splitlines()[0]}") from None
    model.network.eval()
    return model


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
