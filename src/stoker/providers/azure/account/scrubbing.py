"""Removes secrets and ids from what is recorded. Pure. When in doubt, a value is hidden: no replay needs it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

SUBSCRIPTION = "11111111-1111-1111-1111-111111111111"
TENANT = "22222222-2222-2222-2222-222222222222"
CLIENT = "33333333-3333-3333-3333-333333333333"
HIDDEN = "<hidden>"

_SECRET_WORD = (
    r"pass(?:word|wd|phrase)|pwd|secret|(?<!skip)token|assertion|credential|signature|securevalue|connection_?string"
    r"|(?:private|api|access|account|shared|primary|secondary|storage)[_-]?(?:access)?[_-]?key"
)
_GUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_FORMS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), "<token>"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|sk-|AKIA)[\w-]{16,}"), "<token>"),
    (re.compile(r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}"), "<secret>"),  # what Entra ID generates for a client
    (re.compile(rf"""(?i)((?:{_SECRET_WORD})|\bsig|\bcode)=[^&;\s"']+"""), r"\1=<secret>"),
    # As part of other text: as JSON, also inside a JSON string, and as YAML.
    (re.compile(rf"""(?i)((?:{_SECRET_WORD})\\*["']\s*:\s*\\*["'])(?:[^"'\\]|\\[^"'])+"""), r"\1<secret>"),
    (re.compile(rf"""(?i)((?:{_SECRET_WORD}): +)(?:(\\*["'])[^\n]*?\2|\[[^\]\n]*\])"""), r"\1<secret>"),
    (re.compile(rf"""(?i)((?:{_SECRET_WORD}): +)[^\s"'<,]+"""), r"\1<secret>"),
    # Azure signs the addresses of its operations.
    (re.compile(r"([?&][tcsh]=)[^&\s\"'<]{16,}"), r"\1<secret>"),
    (re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="), "<key>"),
    (re.compile(r"(?i)\b(authorization\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\"'\r\n\\]+"), r"\1<secret>"),
    (re.compile(r"(?i)\bBearer\s+\S+"), "Bearer <token>"),
    (re.compile(r"(?<=://)[^/\s:@]{1,128}:[^\s@\"']{1,512}@"), "<login>@"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"), "<mail>"),
)
# Fields whose value is private, at any depth.
_HIDDEN = re.compile(
    rf"(?i).*(?:{_SECRET_WORD}).*|sas|sas_?uri|customdata|userdata|keydata|protected(?:settings|parameters)"
    r"|commandtoexecute|script|output|authorization|contactemails|certificate|pfx"
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
# All that a template may say of a hidden value without saying the value: any other expression may contain it.
_REFERENCE = re.compile(r"\[(?:parameters|variables)\('([A-Za-z0-9_-]{1,64})'\)\]")
_SECURE = frozenset(["securestring", "secureobject"])
_TYPES = _SECURE | {"string", "int", "bool", "object", "array"}
_WHOLE = ("/listkeys", "/regeneratekey", "/runcommand", "/listsecrets", "/listaccountsas", "/listservicesas")


class Scrubber:
    """The account's own ids have fixed stand-ins; that of any other id depends only on it and on the account."""

    def __init__(self, subscription: str, tenant: str = "", client: str = "") -> None:
        named = {subscription.lower(): SUBSCRIPTION, tenant.lower(): TENANT, client.lower(): CLIENT}
        plain = {id.replace("-", ""): instead.replace("-", "") for id, instead in named.items()}
        self._known = {id: instead for id, instead in {**named, **plain}.items() if id}
        self._salt = subscription.lower()

    def text(self, text: str) -> str:
        """Also what is percent-encoded, in base64, or JSON in a string."""
        if inner := _json(text):
            scrubbed = self.body(inner)
            return text if scrubbed == inner else json.dumps(scrubbed)
        text = _unsecret(text)
        for id, instead in self._known.items():
            text = re.sub(re.escape(id), instead, text, flags=re.IGNORECASE)
        return _GUID.sub(lambda found: self._stand_in(found[0]), text)

    def body(self, value: Any, path: str = "") -> Any:
        """A JSON value. `path` is that of the request: the bodies of some consist of secrets."""
        if path.lower().endswith(_WHOLE):
            return HIDDEN if value else value
        return self._value(value, _declared(value))

    def _value(self, value: Any, declared: Mapping[str, str]) -> Any:
        if isinstance(value, Mapping):
            secret = any(_is_private(str(value.get(word, "")), declared) for word in ("name", "key", "keyName"))
            return {
                self.text(str(key)): HIDDEN
                if secret and str(key).lower() == "value" and one
                else self._field(str(key), one, declared)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self._value(one, declared) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any, declared: Mapping[str, str]) -> Any:
        if not _is_private(key, declared) or value in (None, "", [], {}) or isinstance(value, bool):
            return self._value(value, declared)
        return value if _says_no_value(value, declared) else HIDDEN

    def _stand_in(self, id: str) -> str:
        lowered = id.lower()
        if lowered in (SUBSCRIPTION, TENANT, CLIENT):
            return id
        digest = hashlib.sha256(f"{self._salt}/{lowered}".encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


@lru_cache(maxsize=4096)  # lists of sizes and prices say the same a thousand times
def _unsecret(text: str) -> str:
    text = _ENCODED.sub(lambda found: "<base64>" if _is_secret(_plain(found[0])) else found[0], _without(text))
    return _without(decoded) if _is_secret(decoded := _decoded(text)) else text


def _without(text: str) -> str:
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def _is_secret(text: str) -> bool:
    """Whether something in it would be removed."""
    return _without(text) != text


def _decoded(text: str) -> str:
    """Percent-encoding may be nested."""
    for _ in range(4):
        if (plain := unquote(text)) == text:
            break
        text = plain
    return text


def _plain(encoded: str) -> str:
    """What this is in base64; empty for what is none."""
    try:
        padded = encoded.rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(padded + "=" * (-len(padded) % 4)).decode()
    except ValueError:
        return ""


def _json(text: str) -> Any:
    """The object or list that the text is; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _declared(value: Any) -> dict[str, str]:
    """The parameters that a template anywhere in a body declares, and their types, in lower case."""
    if isinstance(value, str):
        value = _json(value)
    if isinstance(value, list):
        return {name: kind for one in value for name, kind in _declared(one).items()}
    if not isinstance(value, Mapping):
        return {}
    found = {str(name).lower(): _type(one) for name, one in value.items() if isinstance(one, Mapping)}
    inner = {name: kind for one in value.values() for name, kind in _declared(one).items()}
    return {**inner, **{name: kind for name, kind in found.items() if kind in _TYPES}}


def _is_private(name: str, declared: Mapping[str, str]) -> bool:
    return declared.get(name.lower()) in _SECURE or bool(_HIDDEN.fullmatch(name))


def _says_no_value(value: Any, declared: Mapping[str, str]) -> bool:
    """The declaration of a parameter, or a reference to one that is declared."""
    if isinstance(value, Mapping):
        return set(value) == {"type"} and _type(value) in _TYPES
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return reference is not None and reference[1].lower() in declared


def _type(declaration: Mapping[str, Any]) -> str:
    return str(declaration.get("type", "")).lower()
