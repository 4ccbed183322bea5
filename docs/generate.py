"""Writes `docs/reference/` from the code that it describes. With `--check` it writes nothing, and fails where a page
is out of date."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click

from stoker import errors
from stoker.cli import COMMANDS, cli
from stoker.errors import StokerError
from stoker.model.cause import Cause
from stoker.model.job import fields as kinds
from stoker.model.job.job import DataInput, Environment, Job, Spot, schema
from stoker.model.job.sections import HangRule
from stoker.model.workspace.home import Home
from stoker.providers import Setup

REFERENCE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->"


def main(arguments: Sequence[str]) -> int:
    wanted = pages()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(REFERENCE.parents[1])} is out of date\n")
        if stale:
            sys.stderr.write("hint: make docs\n")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        sys.stderr.write(f"wrote {path.relative_to(REFERENCE.parents[1])}\n")
    return 0


def pages() -> dict[Path, str]:
    """Every generated file and what should be in it."""
    return {
        REFERENCE / "job-file.md": job_page(),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "api.md": api_page(),
        REFERENCE / "python.md": python_page(),
        REFERENCE.parent / "guides" / "engines.md": engines_page(),
        REFERENCE / "schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
    }


# What each provider can do

_ENGINES_HEAD = f"""{_NOTE}
# What each engine can do

The same job file runs on each of these; only `on:` changes. Checkpoints, resume, logs, outputs and metrics are the same
everywhere. The table is generated from what each provider says of itself.

"""
_ENGINES_TAIL = """
- **notice**: the longest warning before an eviction or a time limit. Without one, a run resumes from its last
  checkpoint.
- **same files**: a path on the submitting computer means the same on the node, and your Python environment is used as
  it is.
- **leases**: a node removes itself if its server is gone for good.
- **gets in**: `stoker ssh` opens a shell on its nodes; `stoker exec` works on all.

See [use your own machines over SSH](use-your-own-machines-over-ssh.md),
[use your Slurm cluster](use-your-slurm-cluster.md), [use your Ray cluster](use-your-ray-cluster.md),
[use Azure ML](use-azure-ml.md), [Kubernetes](kubernetes.md) (not yet proven) and
[your first cloud run](first-cloud-run.md).
"""


def engines_page() -> str:
    columns = ("`on`", "most nodes of a run", "notice", "spot", "same files", "leases", "gets in")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        setup, declared = Setup(Home(Path(home))), tomllib.loads((REFERENCE.parents[1] / "pyproject.toml").read_text())
        plugins = declared["project"]["entry-points"]["stoker.providers"]
        found = {name: EntryPoint(name, value, "").load()(setup).features for name, value in plugins.items()}
    for name, has in sorted(found.items()):
        notice = f"{has.notice_s:g} s" if has.notice_s else "none"
        marks = ["yes" if one else "no" for one in (has.spot, has.shares_files, has.lease_s, has.reachable)]
        rows.append([f"`{name}`", str(has.most_nodes or "no limit"), notice, *marks])
    lines = [columns, ["---"] * len(columns), *rows]
    return _ENGINES_HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines) + _ENGINES_TAIL


# The job file

_JOB_HEAD = f"""{_NOTE}
# The job file

A job is `stoker.yaml`, or a [`Job` in Python](../guides/python-sdk.md) with the same fields. Every field can be
changed on the command line: `stoker run --set processes=2 --set env.SEED=7`. Unknown keys are errors at any depth, and
Stoker reports every problem with its line and column. Editors can use the JSON Schema: [schema.json](schema.json).

```yaml
{{example}}```

`on` selects the provider: `local` (this computer, the default), `ssh`, `slurm`, `ray`, `kubernetes`, `azureml` or
`azure`;
see [what each can do](../guides/engines.md). The table
marks what `local` refuses or ignores.

"""
_EXAMPLE = """name: ants-and-bees
run: python train.py --input_dir ${data.images} --output_dir ${outputs} --epochs 25
environment: requirements.txt
data:
  images: data/hymenoptera
processes: 2
time_limit: 8h
retries: 2
stop_when: val_acc >= 0.95
env: {OMP_NUM_THREADS: "1"}
secrets: [HF_TOKEN]
"""
_SHORT = {  # what the forms that people write by hand stand for
    Environment: " A file name alone stands for `requirements`.",
    DataInput: " A path alone stands for `path`.",
    HangRule: " A time alone stands for `after`; `off`: nobody looks. See"
    " [when a distributed run hangs](../guides/when-a-distributed-run-hangs.md).",
    Spot: " `true` is spot at any price, `false` is none.",
}
# What the fields do on `local`, where that is not what their help says.
_ON_LOCAL = {
    "nodes": "`local`: all on this computer",
    "launcher": "`auto` is `plain`",
    "spot": "`local`: ignored",
    "budget": "`local`: costs nothing, so it has no effect",
    "deadline": "`local`: ignored",
    "image": "`local`: by Docker or Podman; elsewhere refused",
    "dockerfile": "as `image`",
    "path": "a path is read in place; a URL is downloaded to the cache",
    "mode": "for datasets and URLs; see [mount or download?](../concepts/mount-or-download.md)",
    "shard": "`local`: one node, which gets all",
}


def job_page() -> str:
    parts = [_JOB_HEAD.format(example=_EXAMPLE), "## Fields\n\n", _field_table(Job)]
    for record, name in records():
        parts.append(f"\n## {name}\n\n{inspect.getdoc(record)}{_SHORT.get(record, '')}\n\n{_field_table(record)}")
    return "".join(parts) + _JOB_TAIL


def records() -> list[tuple[type[Any], str]]:
    """The mappings inside a job, and where they stand in it."""
    found = []
    for one in fields(Job):
        kind: Any = kinds.kind_of(one)
        name = f"{one.name}.&lt;name&gt;" if isinstance(kind, kinds.MapOf) else one.name
        while inner := getattr(kind, "inner", None) or getattr(kind, "item", None) or getattr(kind, "record", None):
            kind = inner
        if isinstance(kind, kinds.Record):
            found.append((kind.of, name))
    return found


_JOB_TAIL = """
## Variables in the command

| in `run` | value |
|---|---|
| `${outputs}` | the run's outputs folder, as an absolute path |
| `${checkpoints}` | the run's first checkpoints folder, as an absolute path |
| `${data.<name>}` | the path of that input |
| `${HOME}`, `$HOME` | the shell's: Stoker leaves upper-case names to it |

`/bin/sh` runs the command in a private copy of the source. Values are quoted when they are substituted, so a path with
spaces is one argument. [Environment variables](environment.md) lists the variables of the script.
"""


def _field_table(record: type[Any]) -> str:
    rows = [(f"`{one.name}`", kinds.kind_of(one).expected, _default(one), _help(one)) for one in fields(record)]
    return _table(("field", "value", "default", "meaning"), rows)


def _help(one: Field[Any]) -> str:
    text: str = one.metadata["help"]
    return f"{text}. *{_ON_LOCAL[one.name]}*" if one.name in _ON_LOCAL else text


def _default(one: Field[Any]) -> str:
    if one.default is MISSING and one.default_factory is MISSING:
        return "**required**"
    value = one.default_factory() if one.default_factory is not MISSING else one.default
    if value is None or (is_dataclass(value) and not isinstance(value, type)):
        return "none"
    if isinstance(value, Mapping | tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return f"`{value}`"


# The command line

_CLI_HEAD = f"""{_NOTE}
# Commands

`stoker --help` lists the commands, `stoker COMMAND --help` shows one. Data goes to stdout, messages go
to stderr. Every command supports `--json`. For RUN you may use a run's name, an experiment's name (its
newest run) or `last` (the newest of all). Exit codes are listed under [errors](errors.md#exit-codes).

"""


def cli_page() -> str:
    context = click.Context(cli, info_name="stoker")
    contents = [
        _table(
            (title, ""),
            [(f"[`stoker {name}`](#{_anchor(f'stoker {name}')})", line) for name, line in section.items()],
        )
        for title, section in COMMANDS.items()
    ]
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    shown = (_command(command, f"stoker {name}") for command, name in zip(commands, _names(), strict=True) if command)
    return _CLI_HEAD + "\n".join(contents) + "".join(shown)


def _names() -> list[str]:
    return [name for section in COMMANDS.values() for name in section]


def _command(command: click.Command, path: str, level: int = 2) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    text = [f"\n{'#' * level} {path}\n\n```\n{usage}\n```\n\n{_prose(command.help or '')}\n"]
    options = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    options = [(names, meaning) for names, meaning in options if meaning and not names.endswith("--help")]
    if options:
        text.append("\n" + _table(("option", ""), [(f"`{names}`", meaning) for names, meaning in options]))
    if examples := getattr(command, "examples", ()):
        width = max(len(line) for line, _ in examples)
        text.append("\n```sh\n" + "".join(f"{line:<{width}}  # {what}\n" for line, what in examples) + "```\n")
    if isinstance(command, click.Group):
        inner = (command.get_command(context, name) for name in command.list_commands(context))
        text += [_command(one, f"{path} {one.name}", level + 1) for one in inner if one]
    return "".join(text)


# Errors

_ERRORS_HEAD = f"""{_NOTE}
# Errors

An error is one line on stderr, with a hint that is a command if possible:

```
error: there is no job file `stoker.yaml`
hint: write a first one with `stoker init`
```

With `--json` the same goes to stdout:
`{{"error": {{"code": …, "cause": …, "message": …, "hint": …, "problems": […]}}}}`. Codes and [causes](#causes) never
change once published; messages may. In Python every error is a subclass of `stoker.errors.StokerError`.

## Exit codes

`stoker run` and `stoker rerun` return the exit code of the script, so you can use them in a shell script in its place.

| exit code | meaning |
|---|---|
| 0 | the script succeeded, or a metric met `stop_when` |
| 1 to 124, 126, 127 | the script's own: 127 is the shell's for a command that was not found |
| 128 + n | the script was killed by signal n: 137 is SIGKILL, 143 is SIGTERM |
| 125 | Stoker failed: the run could not be prepared or continued, or no server is available |
| 130 | the run was cancelled, or you detached with Ctrl-C |

Other commands use 0 for success and the code of the error they report:

"""


def errors_page() -> str:
    rows = [
        (f"`{one.code}`", f"`{one.__name__}`", str(one.exit_code), str(one.http_status), _sentences(one))
        for one in error_classes()
    ]
    causes = [(f"`{one}`", one.meaning) for one in Cause]
    table = _table(("code", "class", "exit code", "HTTP status", "meaning"), rows)
    return _ERRORS_HEAD + table + _ERRORS_TAIL + _CAUSES_HEAD + _table(("cause", "meaning"), causes)


_ERRORS_TAIL = """
`stoker doctor` and `stoker server status` exit with 1 if a check fails, `stoker cancel` and
`stoker rm` exit with 1 if you answer no.
"""

_CAUSES_HEAD = """
## Causes

Messages are for people, and change. Programs compare codes and causes: `cause` stands beside the `reason` of a run and
the `message` of each of its attempts (`stoker show RUN --json`, `Run.cause` in Python), and in errors whose code has
several causes (`--json`, the API). It is a word of this table, the code of an error, the outcome of an attempt, or
empty.

"""


def error_classes() -> list[type[StokerError]]:
    """The whole tree, in the order of its file."""
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, StokerError)]


def _sentences(of: type[Any]) -> str:
    return " ".join((of.__doc__ or "").split())


# The API

_API_HEAD = f"""{_NOTE}
# The API

HTTP with JSON, on the Unix socket `server.sock` in Stoker's home. `server.json` next to it has the token; send it as
`Authorization: Bearer <token>`:

```sh
token=$(python3 -c 'import json; print(json.load(open("server.json"))["token"])')
curl --unix-socket server.sock -H "Authorization: Bearer $token" http://localhost/v1/runs
```

After `stoker server start --port 8080` the same is at `http://127.0.0.1:8080`. Any user of the computer can take a port
that is free, so ask for `/v1/proof` before you send the token there: a server that knows the token answers with the
HMAC-SHA256 of `stoker server <nonce>` under it. Commands and the Python SDK do so.

The full description, with the fields of every request and response, is served as OpenAPI at `/v1/openapi.json`. Errors
have the shape and the codes of [errors](errors.md). In addition to the statuses below, every call returns 401 without
the token, 408 and 413 for a body that is too slow or too large, and 422, with the field, for an invalid one. The API
may change before 1.0: programs should use the [Python SDK](../guides/python-sdk.md). In [shapes](#shapes), fields in
bold are required.
"""
_EVERY_CALL = {"200", "401", "408", "413", "422"}


def api_page() -> str:
    document = openapi()
    shapes: dict[str, Mapping[str, Any]] = {}
    calls = "".join(_calls(document, shapes))
    return _API_HEAD + calls + "\n## Shapes\n" + "".join(_shape(name, shapes[name]) for name in sorted(shapes))


def openapi() -> dict[str, Any]:
    """The description of a server over an empty home. Nothing is started."""
    from stoker.server.api.app import build
    from stoker.server.records.database import Database
    from stoker.server.service import assemble
    from stoker.server.settings import ServerSettings

    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        database = Database.open(home.database)
        try:
            return build(assemble(ServerSettings(home), "", database)).openapi()
        finally:
            database.close()


def _calls(document: Mapping[str, Any], shapes: dict[str, Mapping[str, Any]]) -> Iterator[str]:
    """The calls, under the noun they are about. Shapes of bodies are collected on the way."""
    tag = ""
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            if call["tags"][0] != tag:
                tag = call["tags"][0]
                yield f"\n## {tag.capitalize()}\n"
            yield f"\n### {method.upper()} {path}\n"
            if call.get("description"):
                yield f"\n{_prose(call['description'])}\n"
            for verb, body in (("Takes", call.get("requestBody")), ("Answers with", call["responses"]["200"])):
                yield from _body(verb, body, document["components"]["schemas"], shapes)
            query = [one for one in call.get("parameters", []) if one["in"] == "query"]
            if query:
                rows = [(f"`{one['name']}`", one["schema"]["type"], _given(one["schema"])) for one in query]
                yield "\n" + _table(("query", "type", "default"), rows)
            if failures := sorted(set(call["responses"]) - _EVERY_CALL):
                yield f"\nMay fail with {', '.join(failures)}.\n"


def _body(
    verb: str, body: Mapping[str, Any] | None, known: Mapping[str, Any], shapes: dict[str, Mapping[str, Any]]
) -> Iterator[str]:
    for media, content in (body or {}).get("content", {}).items():
        shape = content.get("schema", {})
        shape = known[shape["$ref"].rpartition("/")[2]] if "$ref" in shape else shape
        if "title" in shape and "properties" in shape:
            shapes[shape["title"]] = shape
            yield f"\n{verb} a [`{shape['title']}`](#{shape['title'].lower()}).\n"
        elif "properties" in shape:
            yield f"\n{verb} " + ", ".join(f"`{name}`" for name in shape["properties"]) + ".\n"
        else:
            yield f"\n{verb} `{media}`.\n"


def _shape(name: str, shape: Mapping[str, Any]) -> str:
    needed = set(shape.get("required", ()))
    names = ", ".join(f"**`{one}`**" if one in needed else f"`{one}`" for one in shape["properties"])
    return f"\n### {name}\n\n{names}\n"


def _given(shape: Mapping[str, Any]) -> str:
    value = shape.get("default")
    return "none" if value in (None, "") else f"`{json.dumps(value)}`"


# The Python SDK


def python_page() -> str:
    """By a program beside this one, which tests load by its path, too."""
    place = Path(__file__).with_name("pythonpage.py")
    spec = importlib.util.spec_from_file_location("docs_pythonpage", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.page(_NOTE)
    return text


# Markdown


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _prose(text: str) -> str:
    """Paragraphs of a docstring, each on lines of its own."""
    return inspect.cleandoc(text).replace("\b", "").strip()


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
