"""The administrator's one-time set-up of a workspace in Azure, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from stoker.errors import NotAllowed, NotSetUp
from stoker.model.node.node import Need
from stoker.model.workspace.accountform import AccountForm
from stoker.model.workspace.finding import CheckResult, Finding, failed
from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece, Option, PieceState
from stoker.model.workspace.handover import Handover
from stoker.model.workspace.home import Home
from stoker.providers.azure.account.account import FORM, Account, read_account
from stoker.providers.azure.preflight import Preflight
from stoker.providers.azure.preflight.questions import Questions
from stoker.providers.azure.rehearsal import twin_account
from stoker.providers.azure.setup import options
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.setup.options import OPTIONS
from stoker.providers.azure.setup.removal import GroundworkRemoval
from stoker.providers.azure.setup.workspace import Workspace
from stoker.providers.azure.wire.recording import SWITCH, recording


class AzureSetup:
    """Stateless: everything is read from Azure."""

    options: ClassVar[tuple[Option, ...]] = OPTIONS
    form: ClassVar[AccountForm] = FORM

    def plan(self, asked: GivenOptions) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return [piece for piece, _ in Workspace(asked, open_cloud(asked)).steps(costs=True)]

    def lay(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> Handover:
        with _as_owner(asked):
            workspace = Workspace(asked, open_cloud(asked))
            for piece, make in workspace.steps():
                if piece.state is not PieceState.THERE:
                    make()
                    tell(piece)
            return workspace.handover()

    def preflight(self, asked: GivenOptions, needs: Sequence[Need]) -> Iterator[Finding]:
        if asked.folder is None:
            yield from _before_setup(asked, needs)
            return
        try:
            account, secret = _account_of_runs(asked)
        except NotSetUp as error:
            yield Finding("account", CheckResult.FAIL, error.message, error.hint)
            return
        yield from Preflight(account, secret, Home(asked.folder).prices).findings(needs)

    def recording(self, asked: GivenOptions, file: Path) -> AbstractContextManager[None]:
        return recording(asked.folder, file) if asked.folder else nullcontext()

    def drill(self, asked: GivenOptions, key: str) -> str:
        return Questions(*_account_of_runs(asked)).evict(key)

    def survey(self, asked: GivenOptions) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return GroundworkRemoval(asked, open_cloud(asked)).survey()

    def remove(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return GroundworkRemoval(asked, open_cloud(asked)).carry_out(tell)


def _account_of_runs(asked: GivenOptions) -> tuple[Account, str]:
    """The account that runs use, and its secret where no file contains it."""
    if asked.twin is not None:
        switch = str(asked.folder / SWITCH) if asked.folder else ""
        return replace(twin_account(asked.twin), switch=switch), str(asked.twin["client_secret"])
    assert asked.folder is not None
    return read_account(asked.folder / "azure.json"), ""


def _before_setup(asked: GivenOptions, needs: Sequence[Need]) -> Iterator[Finding]:
    """What must hold before anything is created. The rest is what the set-up creates."""
    options.check(asked)
    cloud = open_cloud(asked)
    account = replace(cloud.account, regions=options.regions(asked) or cloud.account.regions)
    preflight = Preflight(account, cloud.secret)
    found = list(preflight.standing(made=True))
    yield from found
    if not failed(found):
        yield from preflight.places(needs)


@contextmanager
def _as_owner(asked: GivenOptions) -> Iterator[None]:
    """Creating roles requires the role Owner: with a smaller one, Azure would refuse the next step."""
    try:
        yield
    except NotAllowed as error:
        who = options.assignee(error.hint)
        scope = f"/subscriptions/{options.subscription(asked)}"
        raise NotAllowed(
            f"{error.message}: the set-up requires the role Owner of the subscription",
            hint=f"an owner runs: az role assignment create --role Owner --assignee {who} --scope {scope}",
        ) from error
