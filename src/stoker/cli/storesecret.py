"""The secret that opens a store: asked for without showing it, or read from a variable or stdin. Never an argument,
which everybody on the computer could read."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Mapping

from stoker.cli import terminal
from stoker.errors import BadInput

KINDS = {"key": "account-key", "sas": "sas", "connection-string": "connection-string", "s3-key": "s3-key"}
_ASKED = {
    "account-key": "account key",
    "sas": "SAS token",
    "connection-string": "connection string",
    "s3-key": "access key id and secret access key, with a `:` between them",
    "": "account key, SAS token or connection string",
}
_FIELD = {"account-key": "key", "sas": "token", "connection-string": "text"}


def credential(url: str, kind: str, variable: str, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The kind and its values. Without a kind, what is given is recognised by its form."""
    if url.startswith(("s3:", "s3a:")) and not kind:
        kind = "s3-key"
    text = _text(_ASKED[kind], variable, environ)
    return values(kind or recognised(text), text)


def recognised(text: str) -> str:
    if "AccountName=" in text or "SharedAccessSignature=" in text or "UseDevelopmentStorage=" in text:
        return "connection-string"
    if "sig=" in text:
        return "sas"
    try:
        if len(base64.b64decode(text, validate=True)) >= 32:
            return "account-key"
    except (binascii.Error, ValueError):
        pass
    raise BadInput(
        "what was given is neither an account key nor a SAS token nor a connection string",
        hint="say which it is with --key, --sas or --connection-string",
    )


def values(kind: str, text: str) -> tuple[str, dict[str, str]]:
    if kind != "s3-key":
        return kind, {_FIELD[kind]: text.removeprefix("?") if kind == "sas" else text}
    parts = text.replace("\n", ":").split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise BadInput("expected an access key id and its secret, with a `:` or a new line between them")
    return kind, dict(zip(("id", "secret", "session"), parts, strict=False))


def _text(what: str, variable: str, environ: Mapping[str, str]) -> str:
    if variable:
        if not environ.get(variable):
            raise BadInput(f"the variable {variable} is not set", hint=f"export {variable} first, then try again")
        return environ[variable].strip()
    if terminal.interactive():
        return terminal.ask_secret(what)
    text = sys.stdin.read().strip() if sys.stdin else ""
    if not text:
        raise BadInput(
            f"expected the {what} on stdin",
            hint="pipe it in, name a variable that holds it with --from-env, or say --login or --anonymous",
        )
    return text
