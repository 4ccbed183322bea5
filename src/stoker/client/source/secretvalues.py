"""Secrets inside texts: tokens in a documented format, and values that only look like secrets.

Nearly every text contains nothing long and dense enough to be a secret, and is done after a single pass. In the others
a format is searched only where its anchor is.
"""

from __future__ import annotations

import codecs
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

EDITION = 6  # raise it with every change here or in `secretfiles`: it invalidates earlier findings
MOST_BYTES = 1 << 20  # of one file
_MOST_SUSPECT_BYTES = 256 << 10
_MOST_HITS = 20
_LONGEST_LINE = 500  # longer ones are minified, or data


class SecretHit(NamedTuple):
    line: int
    kind: str
    sure: bool  # certain: its format belongs to one kind of secret


class _Form(NamedTuple):
    kind: str
    anchor: bytes
    pattern: bytes  # compiled when its anchor is found, which is rare
    least_bits: float = 3.0  # of each character of the secret: with less it is a placeholder
    solid: bool = False  # words with dashes between them match, too, and are not secrets


def _form(kind: str, anchor: str, pattern: str, least_bits: float = 3.0, *, solid: bool = False) -> _Form:
    return _Form(kind, anchor.encode(), pattern.encode(), least_bits, solid)


# Each pattern's group `s` is the secret part.
_KEY_BLOCK = (
    r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"""(?:\\n|\\r|[\s"'+,\\]|[A-Za-z-]{4,20}: [^\n]{1,100}\n){1,12}(?P<s>[A-Za-z0-9+/=]{40})"""
)
_AWS_SECRET = (
    r"""(?:ws_secret_access_key|WS_SECRET_ACCESS_KEY)["']?\]?\s{0,3}[=:]\s{0,3}["']?(?P<s>[A-Za-z0-9/+]{40})\b"""
)
_BETWEEN = r"""(?:[ \t]{1,3}|[ \t]{0,3}["'][ \t]{0,3}\+[ \t]{0,3}["']|%20)"""
_BEARER = rf"{_BETWEEN}(?P<s>[A-Za-z0-9._~+/-]{{16,2000}})(?![A-Za-z0-9._~+/{{$<(\[-])"
_BEARER_UUID = rf"{_BETWEEN}(?P<s>[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})\b"
_FORMS = (
    _form("private key", "PRIVATE KEY", _KEY_BLOCK),
    _form("AWS access key", "AKIA", r"\b(?P<s>AKIA[A-Z2-7]{16})\b"),
    _form("AWS access key", "ASIA", r"\b(?P<s>ASIA[A-Z2-7]{16})\b"),
    _form("AWS secret key", "ws_secret_access_key", _AWS_SECRET, 4.0),
    _form("AWS secret key", "WS_SECRET_ACCESS_KEY", _AWS_SECRET, 4.0),
    *(_form("GitHub token", f"gh{one}_", rf"\bgh{one}_(?P<s>[A-Za-z0-9]{{36,255}})\b") for one in "pousr"),
    _form("GitHub token", "github_pat_", r"\bgithub_pat_(?P<s>[A-Za-z0-9_]{60,255})\b"),
    _form("GitLab token", "glpat-", r"\bglpat-(?P<s>[A-Za-z0-9_-]{20,64})"),
    _form("Hugging Face token", "hf_", r"\bhf_(?P<s>[A-Za-z0-9]{30,60})\b", 3.5),
    _form("API key", "sk-", r"\bsk-(?:[a-z0-9]{2,8}-){0,3}(?P<s>[A-Za-z0-9_-]{32,200})", solid=True),
    _form("Groq key", "gsk_", r"\bgsk_(?P<s>[A-Za-z0-9]{50,60})\b"),
    _form("Replicate token", "r8_", r"\br8_(?P<s>[A-Za-z0-9]{37})\b"),
    _form("Slack token", "xox", r"\bxox[abeoprs]-(?P<s>[0-9A-Za-z-]{20,200})"),
    _form("Stripe key", "k_live_", r"\b[rs]k_live_(?P<s>[0-9A-Za-z]{24,200})\b"),
    _form("Google API key", "AIza", r"\bAIza(?P<s>[0-9A-Za-z_-]{35})(?![0-9A-Za-z_-])", 3.5),
    _form("Google client secret", "GOCSPX-", r"\bGOCSPX-(?P<s>[A-Za-z0-9_-]{28})(?![A-Za-z0-9_-])"),
    _form("npm token", "npm_", r"\bnpm_(?P<s>[A-Za-z0-9]{36})\b"),
    _form("npm token", "_authToken", r"_authToken\s{0,3}=\s{0,3}(?P<s>[A-Za-z0-9_=-]{20,200})"),
    _form("PyPI token", "pypi-AgE", r"\bpypi-AgE(?P<s>[A-Za-z0-9_-]{50,500})"),
    _form("SendGrid key", "SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.(?P<s>[A-Za-z0-9_-]{43})\b"),
    _form("DigitalOcean token", "dop_v1_", r"\bdop_v1_(?P<s>[0-9a-f]{64})\b"),
    _form("Databricks token", "dapi", r"\bdapi(?P<s>[0-9a-f]{32})\b"),
    _form(
        "Weights & Biases key",
        "WANDB_API_KEY",
        r"""WANDB_API_KEY["']?\]?\s{0,3}[=:]\s{0,3}["']?(?P<s>[0-9a-f]{40})\b""",
    ),
    _form("Weights & Biases key", "wandb.login", r"""wandb\.login\([^)\n]{0,60}?["'](?P<s>[0-9a-f]{40})["']"""),
    _form("Azure storage key", "AccountKey=", r"\bAccountKey=(?P<s>[A-Za-z0-9+/]{86})=="),
    _form("Azure shared key", "SharedAccessKey=", r"\bSharedAccessKey=(?P<s>[A-Za-z0-9+/]{42,44})="),
    _form(
        "Azure SAS token",
        "sig=",
        r"\b(?:sv|se|sp|sr|spr)=[^\s\"'<>]{1,400}?[&?]sig=(?P<s>[A-Za-z0-9%+/]{43,90})(?:%3D|=)",
    ),
    _form(
        "JSON web token",
        "eyJ",
        r"\beyJ[A-Za-z0-9_-]{10,400}\.eyJ[A-Za-z0-9_-]{10,4000}\.(?P<s>[A-Za-z0-9_-]{20,800})",
        3.5,
    ),
    # `Authorization: Bearer ...`, in a header, a command or code, also with the scheme in a string of its own.
    *(_form("bearer token", f"{one}earer", rf"\b{one}earer{_BEARER}", solid=True) for one in "Bb"),
    *(_form("bearer token", f"{one}earer", rf"\b{one}earer{_BEARER_UUID}") for one in "Bb"),
)
_ANCHORS = tuple(dict.fromkeys(form.anchor for form in _FORMS))
# Of emulators and manuals: public values.
_PUBLIC = (
    b"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq",
    b"C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mG",
    b"2YotnFZFEjr1zCsicMWpAA",  # of RFC 6749
)
_PLACEHOLDER = re.compile(
    rb"(?i)example|sample|placeholder|dummy|changeme|change_me|your|redacted|xxxx|\*{3}|1234567|abcdefg|00000000"
)

# Names of values that may be secrets. Each word ends its name: a `tokenizer` is not one.
_WORDS = (b"key", b"secret", b"token", b"password", b"passwd", b"passphrase", b"pwd", b"_auth", b"credential")
_KEYS = (
    b"api",
    b"secret",
    b"access",
    b"auth",
    b"private",
    b"account",
    b"signing",
    b"encryption",
    b"master",
    b"license",
)
_VALUE = re.compile(
    rb"""["']?\]?(?:\\["'])?\s{0,4}(?::\s?str\s{0,2})?(?::=|=>|[:=])\s{0,4}"""
    rb"""(?:[rb]{0,2}(?P<quote>\\?["']))?(?P<value>[A-Za-z0-9+/=_.~-]{16,200})"""
    rb"""(?(quote)\\?["']|[ \t]{0,40}(?:[#;,]|\r|\n|\Z))"""  # without quotes as in YAML or a shell: to the line's end
)
# A password in a settings file may contain any character except those of a template or a call.
_PASSWORD = re.compile(
    rb"""["']?\s{0,4}[:=]\s{0,4}(?P<quote>["'])?(?P<value>(?![$<%{(\[])[^\s"'<>{}()\[\]$\\]{10,120})"""
    rb"""(?(quote)["']|[ \t]{0,40}(?:[#;,]|\r|\n|\Z))"""
)
_PASSWORDS = (b"password", b"passwd", b"passphrase", b"pwd", b"secret", b"token")
_IN_URL = re.compile(
    rb"://[^\s/:@\"'<>{}$]{0,60}:(?P<value>[^\s/:@\"'<>{}$()\[\]\\]{8,100})@(?P<host>[A-Za-z0-9\[][A-Za-z0-9.:-]*)"
)
# Of databases that run next to a test, and of manuals.
_NO_HOST = re.compile(
    rb"(?i)localhost|127\.|\[?::1|0\.0\.0\.0|host\.docker\.internal|(?:.*\.)?example\b|.*\.(?:test|invalid)\b"
)
_NAMED = re.compile(rb"(?:%s)[\"'\]\\]{0,3}\s{0,4}(?::\s?str\s{0,2})?[:=]" % b"|".join(_WORDS))
_MOST_OF_A_NAME = 5  # values under one name: with more, each is the id of a row
_NAME = re.compile(rb"[a-z0-9_.-]{0,40}\Z", re.IGNORECASE)
_LEAST_SOLID = 16
_SOLID = re.compile(rb"[A-Za-z0-9+/]{%d,}" % _LEAST_SOLID)

# Dense characters as `x`, all others as blanks: searching a row of `x` is far faster than matching a pattern.
_SOLID_AS_X = bytes(ord("x" if _SOLID.match(bytes([one]) * _LEAST_SOLID) else " ") for one in range(256))
_LETTERS_ALONE = 30  # names are seldom as long; a secret without a digit is, unless it is all in capitals
_DIGIT = re.compile(rb"[0-9]")
_MOST_SPANS = 100
_BROKEN_UP = (b"glpat-", b"AIza", b"GOCSPX-", b"_authToken", b"earer ")  # by `-` and `_`: no part need be solid
_SEVERAL_LINES = b"PRIVATE KEY"


class FileKind(Enum):
    """What a file is for, by its name: the same line means one thing in code, and another in settings."""

    TEXT = 0
    SETTINGS = 1  # people keep passwords in it: every possible value is checked
    PROGRAM = 2  # only quoted text is a value: the rest are expressions


def secrets_in(data: bytes, kind: FileKind = FileKind.TEXT) -> list[SecretHit]:
    """The beginning of a file, or all of it if it is short. Empty if it is not text."""
    data = data[:MOST_BYTES]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes texts
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    if b"\0" in data[:8192]:
        return []
    found = list(_in_urls(data, kind))
    spans = [_Span(0, len(data))] if kind is FileKind.SETTINGS else _spans(data)
    if not spans and not found:
        return []
    together = b"".join(
        data[start:end] for start, end in spans
    )  # one search for all of them: nearly always without a hit
    if any(anchor in together for anchor in _ANCHORS):
        found = [hit for span in spans for hit in _sure(data, span)] + found
    if kind is FileKind.SETTINGS or _NAMED.search(together.lower()):
        found += _rare(hit for span in spans for hit in _suspect(data, span, kind))
    best: dict[int, SecretHit] = {}
    for hit in found:  # the sure ones first
        best.setdefault(hit.line, hit)
    return [best[line] for line in sorted(best)][:_MOST_HITS]


def sure_kind(text: str) -> str:
    """The kind of secret that a short text certainly contains; empty if there is none."""
    data = text.encode(errors="replace")
    return next((hit.kind for hit in _sure(data, _Span(0, len(data)))), "")


class _Span(NamedTuple):
    start: int
    end: int


def _spans(data: bytes) -> list[_Span]:
    """The parts of a text that may contain secrets: lines with something long and dense. Most texts have none."""
    if any(anchor in data for anchor in _BROKEN_UP) or _SEVERAL_LINES in data:
        return [_Span(0, len(data))]
    found: list[_Span] = []
    solid = data.translate(_SOLID_AS_X)
    at = solid.find(b"x" * _LEAST_SOLID)
    while at >= 0:
        end = solid.find(b" ", at)
        end = end if end >= 0 else len(solid)
        if end - at >= _LETTERS_ALONE or _DIGIT.search(data, at, end) or data[at:end].isupper():
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", end)
            end = end + 1 if end >= 0 else len(data)
            if found and found[-1].end > start:
                start = found.pop().start
            found.append(_Span(start, end))
            if len(found) > _MOST_SPANS:
                return [_Span(0, len(data))]
        at = solid.find(b"x" * _LEAST_SOLID, end)
    return found


def _sure(data: bytes, span: _Span) -> Iterator[SecretHit]:
    for form in _FORMS:
        if data.find(form.anchor, *span) >= 0:
            for match in re.compile(form.pattern).finditer(data, *span):
                secret = match["s"]
                if _is_real(secret, form.least_bits) and (not form.solid or _looks_random(secret)):
                    yield SecretHit(data.count(b"\n", 0, match.start()) + 1, form.kind, True)


def _suspect(data: bytes, span: _Span, kind: FileKind) -> Iterator[SecretHit]:
    first, last = span.start, min(span.end, _MOST_SUSPECT_BYTES)
    lower = data[first:last].lower()
    for word in _WORDS:
        at = lower.find(word)
        while at >= 0:
            after = at + len(word)
            if _may_be_secret(lower, at, word) and (value := _value(data, first + after, word, kind)):
                start, end = data.rfind(b"\n", 0, first + at) + 1, data.find(b"\n", value.end("value"))
                if (end if end >= 0 else len(data)) - start <= _LONGEST_LINE:
                    name = _NAME.search(data, max(0, first + at - 40), first + at)
                    shown = (name[0] if name else b"") + data[first + at : first + after]
                    yield SecretHit(data.count(b"\n", 0, start) + 1, f"value of `{shown.decode()}`", False)
            at = lower.find(word, after)


def _in_urls(data: bytes, kind: FileKind) -> Iterator[SecretHit]:
    """`postgresql://me:password@host` in any text: a template placeholder is not a password."""
    if b"@" not in data:
        return
    for match in _IN_URL.finditer(data, 0, _MOST_SUSPECT_BYTES):
        meant, value = kind is FileKind.SETTINGS or not _NO_HOST.match(match["host"]), match["value"]
        # The position identifies it, so a short one counts, and one of hex digits.
        if meant and (_is_password(value, 2.5) or _looks_random(value)):
            yield SecretHit(data.count(b"\n", 0, match.start()) + 1, "password in a URL", False)


def _value(data: bytes, after: int, word: bytes, kind: FileKind) -> re.Match[bytes] | None:
    """The value assigned to a name that ends at `after`, if it looks like a secret."""
    match = _VALUE.match(data, after)
    if match and (match["quote"] or kind is not FileKind.PROGRAM) and _looks_random(match["value"]):
        return match
    match = _PASSWORD.match(data, after) if kind is FileKind.SETTINGS and word in _PASSWORDS else None
    return match if match and _is_password(match["value"]) else None


def _rare(found: Iterable[SecretHit]) -> Iterator[SecretHit]:
    """Without the ids of rows, such as the tokens of a dataset's tables: a secret is not one of many with its name."""
    some = list(found)
    names = Counter(hit.kind for hit in some)
    return (hit for hit in some if names[hit.kind] <= _MOST_OF_A_NAME)


def _is_password(value: bytes, least_bits: float = 3.0) -> bool:
    """Three kinds of characters in an order that words do not have. Paths, versions, URLs and names do not match."""
    kinds = sum(bool(re.search(kind, value)) for kind in (rb"[a-z]", rb"[A-Z]", rb"[0-9]", rb"[^A-Za-z0-9._-]"))
    turns = len(re.findall(rb"(?<=[A-Za-z])[^A-Za-z]|(?<=[0-9])[^0-9]|(?<=[a-z])[A-Z]", value))
    path = b"/" in value and not value.endswith(b"=") and b"+" not in value
    return kinds >= 3 and turns >= 4 and not path and _is_real(value, least_bits)


def _may_be_secret(lower: bytes, at: int, word: bytes) -> bool:
    return word != b"key" or lower[max(0, at - 12) : at].rstrip(b"_-").endswith(_KEYS)


def _is_real(secret: bytes, least_bits: float) -> bool:
    return _bits(secret) >= least_bits and not _PLACEHOLDER.search(secret) and not secret.startswith(_PUBLIC)


def _looks_random(value: bytes) -> bool:
    """Names, paths and words have short parts between their separators, or no digits."""
    return any(
        _is_real(piece, 3.0 if re.fullmatch(rb"[0-9a-f]{32,}|[0-9A-F]{32,}", piece) else 3.5)
        and bool(re.search(rb"[0-9]", piece))
        and bool(re.search(rb"[A-Za-z]", piece))
        for piece in _SOLID.findall(value)
    )


def _bits(text: bytes) -> float:
    """Shannon's entropy, per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
