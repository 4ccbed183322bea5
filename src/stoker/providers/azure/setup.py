"""The administrator's one-time set-up of a workspace in Azure, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

from stoker.errors import Conflict, NotFound
from stoker.model.groundwork import Asked, Option, Piece, PieceState
from stoker.model.handover import Handover, TeamStore
from stoker.providers.azure import setupasked, setuprates, setupsite
from stoker.providers.azure.account import Account
from stoker.providers.azure.setupcloud import SetupCloud
from stoker.providers.azure.setupsite import GROUPS_API, NAMESPACES, ROLES_API, Json, Site, Wanted, agrees

_REGION = "eastus"  # where nobody says
_TRIES = 3  # looks at what is left after a removal, since Azure's lists lag behind


class AzureSetup:
    """Nothing is remembered between calls: what there is, Azure knows."""

    options: ClassVar[tuple[Option, ...]] = setupasked.OPTIONS

    def plan(self, asked: Asked) -> list[Piece]:
        return [piece for piece, _ in _Workspace(asked).looked_at()]

    def lay(self, asked: Asked, tell: Callable[[Piece], None]) -> Handover:
        workspace = _Workspace(asked)
        for piece, make in workspace.looked_at():
            if piece.state is not PieceState.THERE:
                make()
                tell(piece)
        return workspace.handover()

    def survey(self, asked: Asked) -> list[Piece]:
        return _Workspace(asked).survey()

    def remove(self, asked: Asked, tell: Callable[[Piece], None]) -> list[Piece]:
        return _Workspace(asked).remove(tell)


class _Workspace:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._account, secret = _account(asked)
        self._cloud = SetupCloud(self._account, secret)

    def looked_at(self) -> Iterator[tuple[Piece, Callable[[], None]]]:
        """Each piece, as it is now, and what makes it. Later ones are looked at after earlier ones were made."""
        site = self.site
        missing = self._cloud.unregistered(NAMESPACES)
        yield _services(missing), lambda: [self._cloud.register(name) for name in missing] and None
        for one in setupsite.wanted(site, datetime.now(UTC).date()):
            yield self._piece(one, self._cloud.get(one.id, one.api))
        principal = self._principal()
        for person in site.practitioners:
            for one in setupsite.assignments(site, person, principal):
                yield self._piece(one, self._cloud.assigned(one) if principal else None)
