"""NeuMF: taste as a product of factors and, beside it, as a small network; both are learned together."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Tables(NamedTuple):
    """What the model knows of every user and film: their factors, and their share of the network's first layer."""

    user_factors: Tensor
    user_first: Tensor
    film_factors: Tensor
    film_first: Tensor

    def rows(self, users: Tensor, films: Tensor) -> "Tables":
        return Tables(*(_take(table, which) for table, which in zip(self, (users, users, films, films), strict=True)))


class NeuMF(nn.Module):
    """As published by He et al. (2017): `layers[0]` is what user and film bring to the network, half each."""

    def __init__(self, users: int, films: int, factors: int = 64, layers: Sequence[int] = (256, 256, 128, 64)) -> None:
        super().__init__()
        if layers[0] % 2:
            raise ValueError(f"the first layer has {layers[0]} inputs; expected an even number, half for user and film")
        self.user_factors = nn.Embedding(users, factors)
        self.film_factors = nn.Embedding(films, factors)
        self.user_network = nn.Embedding(users, layers[0] // 2)
        self.film_network = nn.Embedding(films, layers[0] // 2)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(layers))
        self.last = nn.Linear(factors + layers[-1], 1)
        for table in (self.user_factors, self.film_factors, self.user_network, self.film_network):
            nn.init.normal_(table.weight, 0.0, 0.01)
        for layer in (*self._linear(), self.last):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def tables(self) -> Tables:
        """The first layer is a sum of a user's and a film's part, so each is computed once and not once per sample.

        That is exact: W·[u, f] = W₁·u + W₂·f. It is the largest layer, so this halves the work.
        """
        first, *_ = self._linear()
        for_user, for_film = first.weight.chunk(2, dim=1)
        return Tables(
            self.user_factors.weight,
            functional.linear(self.user_network.weight, for_user),
            self.film_factors.weight,
            functional.linear(self.film_network.weight, for_film, first.bias),
        )

    def score(self, rows: Tables, activate: Callable[[Tensor], Tensor] = torch.relu, scale: float = 1.0) -> Tensor:
        """Logits of users (n) with films (n, m). `activate` is ReLU, with dropout while training; `scale` makes up for
        what it drops, and is applied to the small weights rather than to the large activations."""
        films = rows.film_first.shape[1]
        x = activate(rows.film_first + rows.user_first[:, None]).flatten(0, 1)
        for layer in self._linear()[1:]:
            x = activate(functional.linear(x, layer.weight * scale, layer.bias))
        products = (rows.film_factors * rows.user_factors[:, None]).flatten(0, 1)
        by_factors, by_network = self.last.weight.split([products.shape[1], x.shape[1]], dim=1)
        logits = functional.linear(products, by_factors, self.last.bias) + functional.linear(x, by_network * scale)
        return logits.view(-1, films)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        return self.score(self.tables().rows(users, films))


def _take(table: Tensor, which: Tensor) -> Tensor:
    """As `table[which]`, which takes ten times as long on a processor."""
    return table.index_select(0, which.flatten()).view(*which.shape, *table.shape[1:])


def geometry(weights: dict[str, Tensor]) -> dict[str, Any]:
    """The arguments of `NeuMF` that these weights were made with."""
    layers = [name for name in weights if name.startswith("layers.") and name.endswith(".weight")]
    widths = [weights[name].shape for name in sorted(layers)]
    return {
        "users": len(weights["user_factors.weight"]),
        "films": len(weights["film_factors.weight"]),
        "factors": weights["user_factors.weight"].shape[1],
        "layers": [widths[0][1], *(shape[0] for shape in widths)],
    }
