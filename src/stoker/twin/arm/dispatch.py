"""One request to Resource Manager: its version, the caller's rights, locks, and its handler."""

from __future__ import annotations

from difflib import get_close_matches

from stoker.twin import ids, rights
from stoker.twin.arm import ask as operations
from stoker.twin.arm import bodies, deployments, network, resources, storage
from stoker.twin.arm.ask import ROUTES, ArmAnswer, Ask
from stoker.twin.arm.subscription import places, policies, roles
from stoker.twin.arm.vms import actions, disks, extensions, parts, scalesets, vms
from stoker.twin.ml import assets, jobs, nodes, workspaces
from stoker.twin.refusal import Refused, locked
from stoker.twin.state import CloudState

NOUNS = (
    actions,
    assets,
    nodes,
    jobs,
    policies,
    deployments,
    disks,
    extensions,
    resources,
    network,
    operations,
    places,
    parts,
    roles,
    scalesets,
    storage,
    vms,
    workspaces,
)

_VERBS = {"GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}
_READ_BY_POST = {"validate", "exportTemplate", "whatIf"}


def answer(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    bodies.check_form(ask)
    target = ask.target
    if target.subscription and target.subscription.lower() != cloud.subscription.lower():
        raise Refused(404, "SubscriptionNotFound", f"The subscription '{target.subscription}' could not be found.")
    handler = ROUTES.get((ask.method, target.kind.lower(), target.tail.lower()))
    if handler is None:
        raise _nobody(ask)
    bodies.check_outline(ask)
    governed = bool(target.subscription) and not _follows_up(target)
    if governed:
        rights.check(cloud, ask.claims, action(ask), target.id if not _collection(ask) else target.scope, ask.body)
    bodies.check(ask)
    places.check(cloud, ask)
    ask = bodies.checked(ask)
    if governed and ask.method in ("PUT", "PATCH"):
        rights.check_links(cloud, ask.claims, target.kind, target.id, ask.body)
    _check_locks(cloud, ask)
    policies.check_policies(cloud, ask)
    return handler(cloud, ask)


def action(ask: Ask) -> str:
    """The name of the request in roles: `Microsoft.Compute/virtualMachines/start/action`."""
    kind = ask.target.kind.replace(ids.GROUPS, "Microsoft.Resources/subscriptions/resourceGroups")
    if ask.method == "POST":
        return f"{kind}/{ask.target.tail}/action"
    tail = f"/{ask.target.tail}" if ask.target.tail else ""
    return f"{kind}{tail}/{_VERBS[ask.method]}"


def _collection(ask: Ask) -> bool:
    return ask.method == "GET" and bool(ask.target.tail)


def _follows_up(target: ids.ResourceTarget) -> bool:
    """Anyone with an operation's URL may poll it."""
    return target.kind.lower().endswith(("/operations", "/operationresults"))


def _check_locks(cloud: CloudState, ask: Ask) -> None:
    verb = _VERBS.get(ask.method, "write")
    if verb == "read" or ask.target.tail in _READ_BY_POST or ask.target.kind == roles.LOCKS:
        return
    if lock := roles.lock_on(cloud, ask.target.id, verb):
        raise locked(ask.target.id, lock.target.scope, verb)


def _nobody(ask: Ask) -> Refused:
    """One sentence that names the closest thing the twin supports."""
    kind, word = ask.target.kind, f"{ask.target.kind}/{ask.target.tail}".strip("/")
    same = sorted({f"{method} {tail}".strip() for method, known, tail in ROUTES if known == kind.lower()})
    if same and "/" in kind:
        message = f"The twin does not answer {ask.method} of '{word}'; for '{kind}' it answers {', '.join(same)}."
        return Refused(405, "MethodNotAllowed", message)
    kinds = sorted({_spelt(known) for _, known, _ in ROUTES if "/" in known and "/locations" not in known})
    nearest = get_close_matches(word, kinds, n=1, cutoff=0.0)
    message = f"The resource type '{word}' could not be found: the twin has none; the nearest it has is '{nearest[0]}'."
    return Refused(404, "InvalidResourceType", message)


def _spelt(kind: str) -> str:
    return "/".join(ids.spelt(word) for word in kind.split("/"))
