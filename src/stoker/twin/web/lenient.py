"""JSON as Azure accepts it: with comments, bare or single-quoted names, trailing commas, and line breaks in strings.

The `az` command line puts the text of a template into its request unchanged, under an unquoted name.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<double>"(?:[^"\\]|\\.)*")
      | (?P<single>'(?:[^'\\]|\\.)*')
      | (?P<sign>[{}\[\]:,])
      | (?P<word>[^\s{}\[\]:,"']+)""",
    re.VERBOSE | re.DOTALL,
)


def loads(text: str) -> Any:
    """Raises ValueError where not even this parses."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_strict(text))


def _strict(text: str) -> str:
    tokens = [token for token in _tokens(text) if token]
    made = []
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token == "," and following in ("}", "]"):
            continue
        bare = following == ":" and token[0] not in '"{}[]:,'
        made.append(json.dumps(token) if bare else token)
    return "".join(made)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unexpected {text[at]!r} at character {at}")
        at = match.end()
        if match["double"]:
            found.append(_one_line(match["double"]))
        elif match["single"]:
            found.append(_one_line('"' + match["single"][1:-1].replace("\\'", "'").replace('"', '\\"') + '"'))
        elif not match["space"]:
            found.append(match[0])
    return found


def _one_line(string: str) -> str:
    return string.replace("\r\n", "\\n").replace("\n", "\\n").replace("\t", "\\t")
