"""The two streams of a command: data goes to stdout, everything else to stderr, without control characters of others;
and errors."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import click

from stoker.client.settings import from_environment
from stoker.errors import BadInput, JobInvalid, StokerError
from stoker.model.cause import Cause

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


# Painted text is marked, and coloured when written. The mark cannot be guessed, so that escape sequences in texts of
# others can be distinguished from our own.
_MARK = f"\ufdd0{os.urandom(6).hex()}"
_END = "\ufdd1"
_MARKS = re.compile(f"{_MARK}([a-z]*){_END}")
_ERASE = "\x1b[K"  # from here to the end of the line

STYLES: dict[str, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "good": {"fg": "green"},
    "busy": {"fg": "cyan"},
    "faint": {"dim": True},
    "strong": {"bold": True},
}


def say(text: str = "") -> None:
    """A line of information."""
    click.echo(finished(text), err=True)


def show(text: str) -> None:
    """A line of data."""
    click.echo(finished(text))


def show_json(value: Any) -> None:
    """One object on one line. NaN and infinity become null."""
    import json  # needed only for JSON

    from stoker.model.wire import to_plain

    click.echo(harmless_json(json.dumps(_finite(to_plain(value)), ensure_ascii=False, allow_nan=False)))


def redraw(text: str, *, err: bool = False) -> None:
    """Overwrites the terminal's current line. Empty: clears it."""
    write(f"\r{finished(text)}{_ERASE}".encode(errors="replace"), err=err)


def write(data: bytes, *, err: bool = False) -> None:
    """Writes all bytes to stdout at once. For the output of a `logview` view: they are not filtered again."""
    stream = sys.stderr if err else sys.stdout
    if not stream:  # closed before we started
        return
    try:
        target = stream.fileno()
    except (OSError, ValueError, AttributeError):  # a replacement without a descriptor
        stream.buffer.write(data)
        stream.buffer.flush()
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:  # another program that shares the terminal made it non-blocking
            time.sleep(0.01)


def paint(text: str, style: str) -> str:
    """The text in a style of `STYLES`, or in none, for stderr."""
    return _marked(text, style) if style and colourful(sys.stderr) else text


def paint_data(text: str, style: str) -> str:
    """The same, for stdout."""
    return _marked(text, style) if style and colourful(sys.stdout) else text


def finished(text: str) -> str:
    """The text as written: safe, with our own colours."""
    return _MARKS.sub(_colour, visible(text))


def colourful(stream: TextIO | None) -> bool:
    return is_terminal(stream) and _colours_wanted()


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return bool(stream and stream.isatty())
    except ValueError:  # closed meanwhile
        return False


def width() -> int:
    """Columns to draw in; very many if it is not a terminal, so that nothing is cut in a file or a pipe."""
    return max(40, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else 1000


def ask(question: str) -> bool:
    """Asks on a terminal. No answer means no."""
    try:
        return click.confirm(finished(question), default=False, err=True)
    except click.Abort:
        say()
        return False


def confirmed(question: str, *, yes: bool, as_json: bool = False) -> bool:
    """Whether the user agrees. Raises BadInput without a terminal: what cannot be undone requires consent."""
    if yes:
        return True
    if as_json or not interactive():
        what = question.rstrip("?")
        raise BadInput(
            f"this would {what}, and there is no terminal to ask for confirmation",
            hint="add `--yes` to confirm",
            cause=Cause.UNCONFIRMED,
        )
    return ask(question)


def ask_number(question: str, most: int) -> int:
    """Asks for a number from 1; Enter chooses the first."""
    return int(click.prompt(finished(question), type=click.IntRange(1, most), default=1, err=True))


def ask_secret(what: str) -> str:
    """Asks without echo."""
    return str(click.prompt(finished(what), hide_input=True, err=True)).strip()


def interactive() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def can_erase() -> bool:
    """The terminal can overwrite a line."""
    return from_environment().variable("TERM") not in (None, "", "dumb")


def _marked(text: str, style: str) -> str:
    return f"{_MARK}{style}{_END}{text}{_MARK}{_END}"


def _colour(mark: re.Match[str]) -> str:
    return click.style("", **STYLES[mark[1]], reset=False) if mark[1] else "\x1b[0m"


@cache
def _colours_wanted() -> bool:
    settings = from_environment()
    return not settings.variable("NO_COLOR") and settings.variable("TERM") != "dumb"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0.0:  # infinite, or not a number
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


INTERRUPTED = 130  # 128 + SIGINT
PIPE_CLOSED = 141  # 128 + SIGPIPE


def report(error: StokerError, *, json: bool) -> int:
    """Prints the error and returns its exit code."""
    if json:
        show_json({"error": facts(error)})
    else:
        for line in lines(error):
            say(line)
    return error.exit_code


def report_bug(error: Exception, *, json: bool) -> int:
    """For an exception that is not one of our errors: the only case in which a traceback is printed."""
    import traceback  # needed only for a bug

    say("".join(traceback.format_exception(error)).rstrip())
    message = f"this is a bug in Stoker: {type(error).__name__}: {error}"
    hint = "please report it to Stoker's issue tracker with the lines above; active runs continue"
    return report(StokerError(message, hint=hint), json=json)


def lines(error: StokerError) -> list[str]:
    first, *more = _message(error).splitlines() or [error.code]
    text = [f"{paint('error:', 'error')} {first}", *(f"  {line}".rstrip() for line in more)]
    if error.hint.strip():
        text += [""] if more else []
        hint, *rest = error.hint.splitlines()
        text += [f"{paint('hint:', 'busy')} {hint}", *(f"  {line}" for line in rest)]
    return text


def facts(error: StokerError) -> dict[str, Any]:
    """The form that every error has in the API."""
    problems = [
        {name: getattr(problem, name) for name in ("field", "found", "expected", "nearest", "line", "column")}
        for problem in getattr(error, "problems", ())
    ]
    told = {"code": error.code, "cause": error.cause, "message": error.message, "hint": error.hint}
    return {**told, "problems": problems}


def from_click(error: click.ClickException) -> StokerError:
    """A mistake on the command line, with the closest match."""
    if not isinstance(error, click.UsageError):
        return BadInput(error.format_message())
    path = error.ctx.command_path if error.ctx else "stoker"
    hint = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = [name for one in (error.ctx.command.params if error.ctx else []) for name in one.opts]
        return BadInput(f"`{path}` has no option `{error.option_name}`", hint=_meant(error.option_name, known, hint))
    if isinstance(error, click.BadParameter) and error.param:
        name = error.param.opts[-1] if isinstance(error.param, click.Option) else error.param.human_readable_name
        what = "is missing" if isinstance(error, click.MissingParameter) else _sentence(error.message)
        return BadInput(f"`{path}`: `{name}`: {what}".replace("`: is", "` is"), hint=hint)
    return BadInput(_sentence(error.format_message()), hint=hint)


def unknown_command(name: str, known: Iterable[str], path: str) -> BadInput:
    return BadInput(f"`{path}` has no command `{name}`", hint=_meant(name, known, f"see `{path} --help`"))


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else otherwise


def _sentence(text: str) -> str:
    text = text.strip().removesuffix(".")
    return text[:1].lower() + text[1:]


def _message(error: StokerError) -> str:
    if isinstance(error, JobInvalid) and len(error.problems) > 1:
        where = error.file or "the job"
        return f"{where} has {len(error.problems)} problems\n{error.message}"
    return error.message


def write_file(file: Path, text: str, option: str) -> None:
    """Raises BadInput where that is not possible."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{file} is not writable: {error.strerror}",
            hint=f"choose another file with {option}",
            cause=Cause.FILE_UNWRITABLE,
        ) from error
