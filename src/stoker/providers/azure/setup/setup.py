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
from stoker.model.workspace.finding import Finding, Verdict, failed
from stoker.model.workspace.groundwork import Asked, Option, Piece, PieceState
from stoker.model.workspace.handover import Handover
from stoker.model.workspace.home import Home
from stoker.providers.azure.account.account import Account, read_account
from stoker.providers.azure.account.handedover import FORM
from stoker.providers.azure.preflight import Preflight
from stoker.providers.azure.preflight.questions import Questions
from stoker.providers.azure.rehearsal import twin_account
from stoker.providers.azure.setup import asked as setupasked
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.setup.removal import Removal
from stoker.providers.azure.setup.workspace import Workspace
from stoker.providers.azure.wire.recording import SWITCH, recording


class AzureSetup:
    """Nothing is remembered between calls: what there is, Azure knows."""

    options: ClassVar[tuple[Option, ...]] = setupasked.OPTIONS
    form: ClassVar[AccountForm] = FORM

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

    def preflight(self, asked: Asked, needs: Sequence[Need]) -> Iterator[Finding]:
        if asked.folder is None:
            yield from _before_setup(asked, needs)
            return
        try:
            account, secret = _account_of_runs(asked)
        except NotSetUp as error:
            yield Finding("account", Verdict.FAIL, error.message, error.hint)
            return
        yield from Preflight(account, secret, Home(asked.folder).prices).findings(needs)

    def recording(self, asked: Asked, file: Path) -> AbstractContextManager[None]:
        return recording(asked.folder, file) if asked.folder else nullcontext()

    def drill(self, asked: Asked, key: str) -> str:
        return Questions(*_account_of_runs(asked)).evict(key)

    def survey(self, asked: Asked) -> list[Piece]:
        with _as_owner(asked):
            return Removal(asked, open_cloud(asked)).survey()

    def remove(self, asked: Asked, tell: Callable[[Piece], None]) -> list[Piece]:
        with _as_owner(asked):
            return Removal(asked, open_cloud(asked)).carry_out(tell)


def _account_of_runs(asked: Asked) -> tuple[Account, str]:
    """What runs use, and its secret where no file has it."""
    if asked.twin is not None:
        switch = str(asked.folder / SWITCH) if asked.folder else ""
        return replace(twin_account(asked.twin), switch=switch), str(asked.twin["client_secret"])
    assert asked.folder is not None
    return read_account(asked.folder / "azure.json"), ""


def _before_setup(asked: Asked, needs: Sequence[Need]) -> Iterator[Finding]:
    """What has to be right before anything is made. The rest is what the set-up makes."""
    setupasked.check(asked)
    cloud = open_cloud(asked)
    account = replace(cloud.account, regions=setupasked.regions(asked) or cloud.account.regions)
    preflight = Preflight(account, cloud.secret)
    found = list(preflight.standing(made=True))
    yield from found
    if not failed(found):
        yield from preflight.places(needs)


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
