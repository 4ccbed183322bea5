"""Text of others, made safe for a terminal: control characters are removed or shown, and nothing else changes."""

from __future__ import annotations

import re

# Control characters except newline, tab and carriage return, and those that change the direction of text, hide text
# or break a line. For use between `[` and `]`.
ACTING = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufff9-\ufffb"
    r"\U000e0000-\U000e007f"
)
_ACTS = re.compile(f"[{ACTING}\r\ud800-\udfff]")
# Whole escape sequences show nothing when executed, so they are removed as a whole: colours, movements (CSI), titles
# and the clipboard (OSC), and the other strings that a terminal swallows. The rest of others is shown.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,40}[ -/]{0,4}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x00-\x06\x08-\x1f\x7f-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
)


def visible(text: str) -> str:
    """The text without escape sequences, and with a visible sign for any other control character."""
    if text.isprintable():  # true for nearly all text
        return text
    return _ACTS.sub(lambda found: picture(found[0]), _SEQUENCE.sub("", text))


def one_line(text: str) -> str:
    """The same on one line."""
    if text.isprintable():
        return text
    return re.sub(r"[\t\n]", " ", visible(text.replace("\r\n", "\n")))


def picture(char: str) -> str:
    """A visible sign for a character that must not reach a terminal."""
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def harmless_json(text: str) -> str:
    """JSON with the same meaning: JSON itself allows more characters than a terminal should get."""
    return _ACTS.sub(lambda found: _escaped(found[0]), text)


def _escaped(char: str) -> str:
    """A character as JSON escapes it: in units of UTF-16."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
