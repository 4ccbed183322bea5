"""The options of `stoker admin setup azure`, and their checks. Pure."""

from __future__ import annotations

import ipaddress
import re
import uuid
from decimal import Decimal, InvalidOperation

from stoker.errors import BadInput
from stoker.model.workspace.groundwork import GivenOptions, Option
from stoker.model.workspace.handover import checked_workspace

OPTIONS = (
    Option("--workspace", "Name of the workspace, also in the names and tags of its resources.", "NAME", teardown=True),
    Option("--subscription", "Id of the subscription; default: AZURE_SUBSCRIPTION_ID.", "ID", teardown=True),
    Option("--region", "Region for VMs; the first also has the store. May be repeated.", "REGION", many=True),
    Option("--budget", "Monthly budget in dollars; Azure sends mails when it is nearly spent.", "AMOUNT"),
    Option("--mail", "Recipient of those mails. May be repeated.", "ADDRESS", many=True),
    Option("--practitioner", "Object id of a user or group to give access. May be repeated.", "ID", many=True),
    Option("--network", "Create a network for nodes with this address range, such as 10.20.0.0/16.", "RANGE"),
    Option("--group", "Name of the resource group; default: stoker_WORKSPACE.", "NAME"),
    Option("--account", "Name of the storage account.", "NAME"),
)
_MAIL = re.compile(r"[^@\s,;]+@[^@\s,;.]+(\.[^@\s,;.]+)+")
_REGION = re.compile(r"[a-z]+[a-z0-9]*")
_GROUP = re.compile(r"[\w().-]{0,89}[\w()-]")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_ASSIGNEE = re.compile(r"--assignee (\S+)")


def assignee(hint: str) -> str:
    """Whom Azure refused, if the hint names it."""
    found = _ASSIGNEE.search(hint)
    return found[1] if found else "YOU"


def check(asked: GivenOptions) -> None:
    """Reads every option. Raises BadInput for an invalid one, before any request to the cloud."""
    for read in (subscription, workspace, budget, practitioners, group, account):
        read(asked)
    network(asked, regions(asked))


def workspace(asked: GivenOptions) -> str:
    if not asked.text("workspace"):
        raise BadInput("--workspace is required", hint="--workspace vision-team")
    return checked_workspace(asked.text("workspace"))


def subscription(asked: GivenOptions) -> str:
    """The twin has one of its own."""
    told = str(asked.twin["subscription"]) if asked.twin else ""
    given = asked.text("subscription") or told or asked.variables.get("AZURE_SUBSCRIPTION_ID", "").strip()
    if not given:
        raise BadInput("--subscription is required", hint='--subscription "$(az account show --query id --output tsv)"')
    return _guid(given, "--subscription")


def regions(asked: GivenOptions) -> tuple[str, ...]:
    """In Azure's own spelling: `West Europe` is `westeurope`. Empty: the existing ones, or the default."""
    given = tuple(dict.fromkeys(one.lower().replace(" ", "") for one in asked.texts("region")))
    for one in given:
        if not _REGION.fullmatch(one):
            raise BadInput(
                f"unknown Azure region `{one}`", hint="az account list-locations --query '[].name' --output tsv"
            )
    return given


def budget(asked: GivenOptions) -> tuple[Decimal | None, tuple[str, ...]]:
    text, mails = asked.text("budget"), asked.texts("mail")
    for mail in mails:
        if not _MAIL.fullmatch(mail):
            raise BadInput(f"`{mail}` is not a mail address", hint="--mail anna@example.org")
    if not text:
        if mails:
            raise BadInput("--mail requires a budget: mails are sent when it is nearly spent", hint="--budget 200")
        return None, ()
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise BadInput(f"the budget is `{text}`, expected a number of dollars", hint="--budget 200") from None
    if not amount.is_finite() or amount <= 0:
        raise BadInput(f"the budget is {text}, expected more than 0 dollars", hint="--budget 200")
    if not mails:
        raise BadInput("--budget requires a mail address to notify", hint="--mail anna@example.org")
    return amount, mails


def network(asked: GivenOptions, regions: tuple[str, ...]) -> str:
    text = asked.text("network")
    if not text:
        return ""
    try:
        found = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise BadInput(f"the network is `{text}`: {error}", hint="--network 10.20.0.0/16") from None
    if not found.is_private or found.prefixlen > 28:
        raise BadInput(f"{text} is not a private network of at least 16 addresses", hint="--network 10.20.0.0/16")
    return one_region(text, regions)


def one_region(network: str, regions: tuple[str, ...]) -> str:
    """The network, unless VMs may be in other regions."""
    if network and len(regions) > 1:
        raise BadInput(
            f"a network belongs to one region, but VMs may be in {len(regions)}: {', '.join(regions)}",
            hint="name one --region, or omit --network: each node then has its own network",
        )
    return network


def practitioners(asked: GivenOptions) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_guid(one, "--practitioner") for one in asked.texts("practitioner")))


def group(asked: GivenOptions) -> str:
    text = asked.text("group")
    if text and not _GROUP.fullmatch(text):
        raise BadInput(f"`{text}` is not a valid name of a resource group", hint="use letters, digits, `-` and `_`")
    return text


def account(asked: GivenOptions) -> str:
    text = asked.text("account")
    if text and not _ACCOUNT.fullmatch(text):
        raise BadInput(
            f"`{text}` is not a valid storage account name", hint="use 3 to 24 lower-case letters and digits"
        )
    return text


def _guid(text: str, option: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        ask = "az account list" if option == "--subscription" else "az ad user show --id NAME --query id --output tsv"
        raise BadInput(f"{option} is `{text}`, expected an id such as {uuid.UUID(int=0)}", hint=ask) from None
