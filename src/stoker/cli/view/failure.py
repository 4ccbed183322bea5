"""Errors as people and programs read them, and their exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import click

from stoker.cli.view.terminal import paint, say, show_json
from stoker.errors import BadInput, JobInvalid, StokerError

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
    return {"code": error.code, "message": error.message, "hint": error.hint, "problems": problems}


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
