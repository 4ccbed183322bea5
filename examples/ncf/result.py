"""What a training leaves behind: the weights, who their rows are, and what is needed to recommend to you."""

from dataclasses import dataclass
from pathlib import Path

import torch
from dataset import Dataset
from folder import replacing
from model import NeuMF, geometry
from problem import Problem
from torch import Tensor


@dataclass
class Result:
    """Titles come along, so that a model is of use without its data. `mine` are films with a personal rating."""

    weights: dict[str, Tensor]
    user_ids: Tensor
    film_ids: Tensor
    titles: list[str]
    genres: list[str]
    mine: list[int]
    data: str
    mark: str  # of the data, without personal ratings
    liked_from: float
    metrics: dict[str, float]

    def save(self, path: Path) -> None:
        """The old file stays until the new one is complete."""
        with replacing(path) as new:
            torch.save(vars(self), new)

    @classmethod
    def load(cls, path: Path) -> "Result":
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
            held["weights"] = {name.removeprefix("module."): weight for name, weight in held["weights"].items()}
            return cls(**held)
        except FileNotFoundError:
            raise Problem(path, None, "there is no such file; train.py writes it") from None
        except Exception as error:  # a damaged file raises nearly anything
            raise Problem(path, None, f"is no model of train.py: {str(error).splitlines()[0][:200]}") from None

    def model(self) -> NeuMF:
        model = NeuMF(**geometry(self.weights))
        model.load_state_dict(self.weights)
        return model.eval()

    def check(self, dataset: Dataset, path: Path) -> None:
        """Whether the rows of the model are those of this data."""
        if self.mark != dataset.mark:
            raise Problem(path, None, "was trained on other data; name it with --data")
