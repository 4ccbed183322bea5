"""The administrator's one-time set-up of a workspace in Azure, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from stoker.errors import NotAllowed
from stoker.model.groundwork import Asked, Option, Piece, PieceState
from stoker.model.handover import Handover
from stoker.providers.azure import setupasked
from stoker.providers.azure.setupcloud import open_cloud
from stoker.providers.azure.setupremoval import Removal
from stoker.providers.azure.setupworkspace import Workspace


class AzureSetup:
    """Nothing is remembered between calls: what there is, Azure knows."""

    options: ClassVar[tuple[Option, ...]] = setupasked.OPTIONS

    def plan(self, asked: Asked) -> list[Piece]:
        with _as_owner(asked):
            return [piece for piece, _ in Workspace(asked, open_cloud(asked)).steps(costs=True)]

    def lay(self, asked: Asked, tell: Callable[[Piece], None]) -> Handover:
        with _as_owner(asked):
            workspace = Workspace(asked, open_cloud(asked))
            for piece, make in workspace.steps():
                if piece.state is not PieceState.THERE:
                    make()
                    tell(piece)
            return workspace.handover()

    def survey(self, asked: Asked) -> list[Piece]:
        with _as_owner(asked):
            return Removal(asked, open_cloud(asked)).survey()

    def remove(self, asked: Asked, tell: Callable[[Piece], None]) -> list[Piece]:
        with _as_owner(asked):
            return Removal(asked, open_cloud(asked)).carry_out(tell)


@contextmanager
def _as_owner(asked: Asked) -> Iterator[None]:
    """Who makes roles has to be an owner: any smaller role would be refused at the next step."""
    try:
        yield
    except NotAllowed as error:
        who = setupasked.assignee(error.hint)
        scope = f"/subscriptions/{setupasked.subscription(asked)}"
        raise NotAllowed(
            f"{error.message}: a set-up needs the role Owner of the subscription",
            hint=f"an owner runs: az role assignment create --role Owner --assignee {who} --scope {scope}",
        ) from error
