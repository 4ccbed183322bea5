"""What an administrator may say of a workspace in Azure, and what is wrong with it. Pure."""

from __future__ import annotations

import ipaddress
import re
import uuid
from decimal import Decimal, InvalidOperation

from stoker.errors import BadInput
from stoker.model.workspace.groundwork import Asked, Option
from stoker.model.workspace.handover import checked_workspace

OPTIONS = (
    Option("--workspace", "Its name, which is on everything that is made.", "NAME", teardown=True),
    Option("--subscription", "The id of the subscription; else AZURE_SUBSCRIPTION_ID.", "ID", teardown=True),
    Option("--region", "Where machines may be; the first also has the store. May be repeated.", "REGION", many=True),
    Option("--budget", "A month's budget in dollars, of which Azure sends mails.", "AMOUNT"),
    Option("--mail", "Who gets those mails. May be repeated.", "ADDRESS", many=True),
    Option("--practitioner", "The object id of a person or a group to admit. May be repeated.", "ID", many=True),
    Option("--network", "Make a network for nodes, with these addresses, such as 10.20.0.0/16.", "RANGE"),
    Option("--group", "Call the resource group this instead of stoker_WORKSPACE.", "NAME"),
    Option("--account", "Call the storage account this.", "NAME"),
)
_MAIL = re.compile(r"[^@\s,;]+@[^@\s,;.]+(\.[^@\s,;.]+)+")
_REGION = re.compile(r"[a-z]+[a-z0-9]*")
_GROUP = re.compile(r"[\w().-]{0,89}[\w()-]")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_ASSIGNEE = re.compile(r"--assignee (\S+)")


def assignee(hint: str) -> str:
    """Whom Azure has refused, as far as it said."""
    found = _ASSIGNEE.search(hint)
    return found[1] if found else "YOU"


def check(asked: Asked) -> None:
    """Reads every option. Raises BadInput for one that cannot be read, before any cloud is asked."""
    for read in (subscription, workspace, budget, practitioners, group, account):
        read(asked)
    network(asked, regions(asked))


def workspace(asked: Asked) -> str:
    if not asked.text("workspace"):
        raise BadInput("a workspace needs a name", hint="--workspace vision-team")
    return checked_workspace(asked.text("workspace"))


def subscription(asked: Asked) -> str:
    """The twin has one of its own."""
    told = str(asked.twin["subscription"]) if asked.twin else ""
    given = asked.text("subscription") or told or asked.variables.get("AZURE_SUBSCRIPTION_ID", "").strip()
    if not given:
        raise BadInput("which subscription?", hint='--subscription "$(az account show --query id --output tsv)"')
    return _guid(given, "--subscription")


def regions(asked: Asked) -> tuple[str, ...]:
    """In Azure's own spelling: `West Europe` is `westeurope`. Empty: those that there are, or the default."""
    given = tuple(dict.fromkeys(one.lower().replace(" ", "") for one in asked.texts("region")))
    for one in given:
        if not _REGION.fullmatch(one):
            raise BadInput(f"`{one}` is no region", hint="az account list-locations --query '[].name' --output tsv")
    return given


def budget(asked: Asked) -> tuple[Decimal | None, tuple[str, ...]]:
    text, mails = asked.text("budget"), asked.texts("mail")
    for mail in mails:
        if not _MAIL.fullmatch(mail):
            raise BadInput(f"`{mail}` is no mail address", hint="--mail anna@example.org")
    if not text:
        if mails:
            raise BadInput("mails are sent when a budget is nearly spent, and there is none", hint="--budget 200")
        return None, ()
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise BadInput(f"the budget is `{text}`, expected a number of dollars", hint="--budget 200") from None
    if not amount.is_finite() or amount <= 0:
        raise BadInput(f"the budget is {text}, expected more than 0 dollars", hint="--budget 200")
    if not mails:
        raise BadInput("a budget tells somebody when it is nearly spent: whom?", hint="--mail anna@example.org")
    return amount, mails


def network(asked: Asked, regions: tuple[str, ...]) -> str:
    text = asked.text("network")
    if not text:
        return ""
    try:
        found = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise BadInput(f"the network is `{text}`: {error}", hint="--network 10.20.0.0/16") from None
    if not found.is_private or found.prefixlen > 28:
        raise BadInput(f"{text} is no private network of 16 addresses or more", hint="--network 10.20.0.0/16")
    return one_region(text, regions)


def one_region(network: str, regions: tuple[str, ...]) -> str:
    """The network, unless machines could be where it is not."""
    if network and len(regions) > 1:
        raise BadInput(
            f"a network is in one region, and machines may be in {len(regions)}: {', '.join(regions)}",
            hint="name one --region, or leave --network out: each node then has a network of its own",
        )
    return network


def practitioners(asked: Asked) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_guid(one, "--practitioner") for one in asked.texts("practitioner")))


def group(asked: Asked) -> str:
    text = asked.text("group")
    if text and not _GROUP.fullmatch(text):
        raise BadInput(f"`{text}` cannot name a resource group", hint="use letters, digits, `-` and `_`")
    return text


def account(asked: Asked) -> str:
    text = asked.text("account")
    if text and not _ACCOUNT.fullmatch(text):
        raise BadInput(f"`{text}` cannot name a storage account", hint="use 3 to 24 lower-case letters and digits")
    return text


def _guid(text: str, option: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        ask = "az account list" if option == "--subscription" else "az ad user show --id NAME --query id --output tsv"
        raise BadInput(f"{option} is `{text}`, expected an id such as {uuid.UUID(int=0)}", hint=ask) from None
