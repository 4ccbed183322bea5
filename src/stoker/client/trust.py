"""Which hosts and folders a hand-over file names that are not its provider's own: whoever uses it has to agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from stoker.client import twin
from stoker.client.settings import Settings
from stoker.errors import BadInput
from stoker.model.accountform import AccountForm, Address
from stoker.model.handover import Handover
from stoker.stores.kinds import locate


@dataclass(frozen=True, slots=True)
class Place:
    """`where` is a host with its port, a folder as `file:///…`, or a bucket of a public service as `s3://…`."""

    field: str
    where: str

    def trusted(self, words: Iterable[str]) -> bool:
        """A word is `where` itself, with or without `https://`, or a host for all of its ports."""
        here = _plain(self.where)
        host, _, port = here.rpartition(":")
        return bool({here, host if port.isdecimal() else here} & {_plain(word) for word in words})


def places(handover: Handover, forms: Mapping[str, AccountForm]) -> list[Place]:
    """Those that are not a provider's own, in the order of the file.

    A certificate stands for hosts that nobody else vouches for. Beside the provider's own hosts it would let whoever
    wrote the file pass for them, so that is refused.
    """
    foreign = [*_of_accounts(handover, forms), *_of_store(handover, forms)]
    if handover.certificate:
        addresses = {
            f"accounts.{provider}.{name}" for provider in handover.accounts for name in _addresses(forms, provider)
        }
        store = {"store.url", "store.values.authority"} if handover.store else set()
        if own := sorted((addresses | store) - {one.field for one in foreign}):
            raise BadInput(
                f"the file has a certificate of its own, and {own[0]} is not a host of its own",
                hint="ask your administrator for the file again",
            )
    return foreign


def of_own_twin(settings: Settings) -> list[str]:
    """The hosts of this user's own running twin: on this computer, and proven by the lock it holds."""
    told = twin.find(settings) or {}
    blob = told.get("blob") or {}
    return [urlsplit(str(url)).netloc for url in (told.get("url"), blob.get("url")) if url]


def _of_accounts(handover: Handover, forms: Mapping[str, AccountForm]) -> Iterator[Place]:
    for provider, account in handover.accounts.items():
        for name, value in account.items():
            form = _addresses(forms, provider).get(name)
            if form and (host := form.foreign(value)):
                yield Place(f"accounts.{provider}.{name}", host)


def _of_store(handover: Handover, forms: Mapping[str, AccountForm]) -> Iterator[Place]:
    if not handover.store:
        return
    host = _host(handover.store.url)
    if not any(form.own_store(host) for form in forms.values()):
        yield Place("store.url", host)
    addresses = [one for provider in forms for one in _addresses(forms, provider).values()]
    authority = handover.store.values.get("authority")
    if authority and all(one.foreign(authority) for one in addresses):
        yield Place("store.values.authority", urlsplit(authority).netloc)


def _addresses(forms: Mapping[str, AccountForm], provider: str) -> dict[str, Address]:
    """Empty for a provider without a form, which no file can name."""
    fields = forms[provider].fields if provider in forms else {}
    return {name: form for name, form in fields.items() if isinstance(form, Address)}


def _host(url: str) -> str:
    """Of the place that a server would open, after the same reading. Without TLS it is nobody's own."""
    place = locate(url)
    if place.local:
        return place.url
    if not place.endpoint:  # a bucket of the public service
        return replace(place, prefix="", region="").url
    parts = urlsplit(place.endpoint)
    return parts.netloc if parts.scheme == "https" else f"{parts.scheme}://{parts.netloc}"


def _plain(word: str) -> str:
    return word.removeprefix("https://").removeprefix("http://").rstrip("/")
