"""What a hand-over file may say of a provider's account: an allow-list in which every field has a type and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST = 300
# Strict on purpose: two readers of such an address cannot disagree about which host it names.
_ADDRESS = re.compile(
    r"https://((?:[a-z0-9-]{1,63}\.){0,9}[a-z0-9-]{1,63}(?::[0-9]{1,5})?)(?:/[A-Za-z0-9/._~-]{0,200})?"
)


@dataclass(frozen=True, slots=True)
class TextField:
    """`many`: a list of up to so many such texts instead of one."""

    pattern: str
    expected: str
    many: int = 0

    def fits(self, value: object) -> bool:
        if self.many:
            return isinstance(value, list) and len(value) <= self.many and all(map(self._one, value))
        return self._one(value)

    def _one(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= _LONGEST and bool(re.fullmatch(self.pattern, value, re.ASCII))


@dataclass(frozen=True, slots=True)
class NumberField:
    least: float
    most: float
    whole: bool = False

    @property
    def expected(self) -> str:
        return f"a{' whole' if self.whole else ''} number from {self.least:g} to {self.most:g}"

    def fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class FlagField:
    expected: str = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class AddressField:
    """Where requests, and what proves who sends them, go. `own` are the hosts of the provider itself: any other host
    needs the user's consent."""

    own: tuple[str, ...]
    expected: str = "an https address"

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and bool(_ADDRESS.fullmatch(value))

    def foreign(self, value: str) -> str:
        """The host with its port, unless it is one of the provider's own."""
        found = _ADDRESS.fullmatch(value)
        host = found[1] if found else value
        return "" if host in self.own else host


@dataclass(frozen=True, slots=True)
class AccountForm:
    """`stores` matches the hosts of the provider's own storage; `login` and `admission` the commands that users are
    shown: a file from somebody else must not put other commands into their mouths."""

    fields: Mapping[str, TextField | NumberField | FlagField | AddressField]
    required: tuple[str, ...]
    stores: str
    login: str
    admission: str

    def own_store(self, host: str) -> bool:
        return bool(re.fullmatch(self.stores, host, re.ASCII))
