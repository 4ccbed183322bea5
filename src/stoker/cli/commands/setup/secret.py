"""The secret that opens a store: asked for without showing it, or read from a variable or stdin. Never an argument,
which everybody on the computer could read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from stoker.cli.view import terminal
from stoker.client.api.stores import CredentialForm, credential_forms
from stoker.errors import BadInput


def credential(url: str, kind: str, variable: str, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The kind and its values. Without a kind, what is given is recognised by its form."""
    forms = [form for form in credential_forms(url) if form.asked]
    chosen = [form for form in forms if not kind or form.name == kind]
    if not chosen:  # such as a login: nothing is asked for. The server knows whether it fits.
        return kind or "none", {}
    text = _text(_either([form.asked for form in chosen]), variable, environ)
    form = chosen[0] if kind else recognised(chosen, text)
    return form.name, dict(form.read(text))


def recognised(forms: Sequence[CredentialForm], text: str) -> CredentialForm:
    for form in forms:
        if form.recognise(text):
            return form
    asked = " nor ".join(form.asked for form in forms)
    raise BadInput(
        f"what was given is neither {asked}", hint=f"say which it is with {_either([form.flag for form in forms])}"
    )


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


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
