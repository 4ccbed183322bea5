"""The commands, their help, and how mistakes are answered."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from inspect import Parameter, signature
from pathlib import Path

import click
import pytest

import stoker.cli
from stoker.cli import COMMANDS, HOMES, answer, cli
from stoker.cli.command import Command, loaded
from stoker.cli.view.terminal import facts, lines, report
from stoker.errors import BadInput, JobInvalid, NotFound, Problem, StokerError

LINES = {name: line for section in COMMANDS.values() for name, line in section.items()}


def command_of(name: str) -> Command:
    command = loaded(HOMES[name])
    assert isinstance(command, Command)
    return command


@pytest.mark.parametrize("name", LINES)
def test_the_line_in_the_table_is_the_first_of_the_commands_help(name: str) -> None:
    help = command_of(name).help
    assert help is not None
    assert help.splitlines()[0] == LINES[name]


@pytest.mark.parametrize("name", LINES)
def test_every_command_has_examples_that_use_it(name: str) -> None:
    examples = command_of(name).examples
    assert 2 <= len(examples) <= 4
    assert any(f"stoker {name}" in line for line, _ in examples)


@pytest.mark.parametrize("name", LINES)
def test_every_command_speaks_json(name: str) -> None:
    command = command_of(name)
    commands = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    assert all("--json" in [flag for one in command.params for flag in one.opts] for command in commands)


def test_every_command_in_a_file_can_be_called() -> None:
    folder = Path(stoker.cli.__file__).parent
    made = {
        f"{'.'.join(path.relative_to(folder.parents[1]).with_suffix('').parts)}.{node.name}"
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and any(map(makes_a_command, node.decorator_list))
    }
    assert len(made) > len(LINES)
    assert made <= set(callable_from(cli))
    assert list(HOMES) == list(LINES)


def makes_a_command(decorator: ast.expr) -> bool:
    made_by = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(made_by, ast.Attribute) and made_by.attr in ("command", "group")


def callable_from(group: click.Group) -> Iterator[str]:
    for command in every_command(group):
        if command.callback:
            yield f"{command.callback.__module__}.{command.callback.__name__}"


def test_every_command_takes_all_of_its_options() -> None:
    for command in every_command(cli):
        if command.callback:
            taken = signature(command.callback, follow_wrapped=False).parameters
            takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
            assert takes_any or {one.name for one in command.params} <= taken.keys(), command.name


def every_command(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for command in filter(None, (group.get_command(context, name) for name in group.list_commands(context))):
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command)


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from stoker.cli import answer; answer(['--help'])\n"
        "print(sorted(name for name in sys.modules if name.startswith(('stoker.', 'rich', 'yaml'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert loaded == "['stoker.cli', 'stoker.cli.command']"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["-h"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and line in out for name, line in LINES.items())


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([]) == 0
    assert "stoker init" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["rnu"], "`stoker` has no command `rnu`", "did you mean `run`?"),
        (["zzzz"], "`stoker` has no command `zzzz`", "see `stoker --help`"),
        (["server", "statsu"], "`stoker server` has no command `statsu`", "did you mean `status`?"),
        (["schema", "--jsno"], "`stoker schema` has no option `--jsno`", "did you mean `--json`?"),
        (
            ["completion", "tcsh"],
            "`stoker completion`: `bash|zsh|fish`: 'tcsh' is not one of",
            "see `stoker completion --help`",
        ),
        (["completion"], "`stoker completion`: `bash|zsh|fish` is missing", "see `stoker completion --help`"),
        (["schema", "more"], "got unexpected extra argument (more)", "see `stoker schema --help`"),
    ],
)
def test_a_mistyped_command_line_is_answered_with_what_was_meant(
    args: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(args) == 2
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first.startswith(f"error: {error}")
    assert second.startswith(f"hint: {hint}")


def test_errors_are_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["rnu", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["code"] == "bad-input"
    assert captured.err == ""


def test_an_error_with_several_problems_lists_them_all() -> None:
    problems = [
        Problem("nodez", "an unknown key", "one of nodes", "nodes", 3, 1),
        Problem("run", "nothing", "text", "", 1, 1),
    ]
    assert lines(JobInvalid(problems, file="stoker.yaml", hint="look again")) == [
        "error: stoker.yaml has 2 problems",
        "  stoker.yaml:3:1: nodez: found an unknown key, expected one of nodes (did you mean `nodes`?)",
        "  stoker.yaml:1:1: run: found nothing, expected text",
        "",
        "hint: look again",
    ]


def test_an_error_of_one_line_keeps_its_hint_close() -> None:
    assert lines(NotFound("there is no run `a`", hint="stoker ps")) == ["error: there is no run `a`", "hint: stoker ps"]
    assert lines(StokerError("")) == ["error: error"]


def test_problems_travel_in_json() -> None:
    error = JobInvalid([Problem("nodes", "`x`", "a number", "", 2, 8)], file="stoker.yaml")
    assert facts(error)["problems"] == [
        {"field": "nodes", "found": "`x`", "expected": "a number", "nearest": "", "line": 2, "column": 8}
    ]


def test_the_exit_code_is_that_of_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(BadInput("no"), json=False) == 2
    assert report(StokerError("trouble"), json=True) == 125
    assert json.loads(capsys.readouterr().out) == {
        "error": {"code": "error", "cause": "", "message": "trouble", "hint": "", "problems": []}
    }


def test_a_bug_shows_where_it_is_and_that_runs_are_safe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def broken() -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(stoker.cli.Commands, "get_command", lambda *_: broken)
    assert answer(["ps"]) == 125
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "error: this is a bug in Stoker: ZeroDivisionError: by nought" in err
    assert "active runs continue" in err


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["--version"]) == 0
    assert capsys.readouterr().out == f"stoker {stoker.__version__}\n"


def test_completing_a_command_loads_none() -> None:
    names = [item.value for item in cli.shell_complete(click.Context(cli), "s")]
    assert {"show", "ssh", "stacks", "sweep"} <= set(names) and all(name.startswith("s") for name in names)
