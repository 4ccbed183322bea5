"""What is public is documented, and what is documented is so."""

import ast
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest

import stoker
import stoker.checkpoint
from stoker.cli import cli
from stoker.client.submit import jobfile
from stoker.errors import JobInvalid, NotSetUp, StokerError
from stoker.model.job.job import DataInput, Environment, Job, Spot
from stoker.model.workspace.home import Home
from stoker.providers import Setup, load
from stoker.server.admission import admit
from stoker.testing.fakes import FakeProvider

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "stoker"
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
PROGRAMS = ("agent", "client", "server")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def script(name: str) -> ModuleType:
    """One of the programs in `docs/`, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page that are in this language, without the indentation of a list they are in."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in found]


def prose(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


# The reference


def test_the_reference_is_up_to_date() -> None:
    stale = [path.name for path, text in script("generate").pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


def commands(group: click.Group = cli, path: str = "stoker") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_is_documented_with_its_options_and_examples(path: str, command: click.Command) -> None:
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    section = re.search(rf"^#+ {path}\n(.*?)(?=^#+ stoker|\Z)", page, re.S | re.M)
    assert section, f"{path} is not in cli.md"
    options = [name for one in command.params if isinstance(one, click.Option) for name in one.opts]
    assert [name for name in options if name not in section[1]] == []
    examples = [line for line, _ in getattr(command, "examples", ())]
    assert [line for line in examples if line not in section[1]] == []
    undocumented = [one.name for one in command.params if isinstance(one, click.Option) and not one.help]
    assert undocumented == []


def job_records() -> list[type]:
    return [Job, *(record for record, _ in script("generate").records())]


def test_every_field_of_a_job_is_documented() -> None:
    page = (REFERENCE / "job-file.md").read_text(encoding="utf-8")
    assert {Environment, DataInput, Spot} < set(job_records())
    for record in job_records():
        assert [one.name for one in fields(record) if f"| `{one.name}` |" not in page] == [], record


def test_every_error_is_documented_with_a_sentence() -> None:
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    for one in script("generate").error_classes():
        assert f"| `{one.code}` | `{one.__name__}` |" in page
        assert one.__doc__, one


def test_everything_public_of_the_python_packages_is_in_the_reference_with_a_sentence() -> None:
    page = (REFERENCE / "python.md").read_text(encoding="utf-8")
    sdk = script("pythonpage")
    for package in (stoker, stoker.checkpoint):
        for name in package.__all__:
            assert f"### {package.__name__}.{name}\n" in page
            assert inspect.getdoc(getattr(package, name)), name
    members = [(one, name, member) for one in sdk.public_classes() for name, member in sdk.public_members(one)]
    assert len(members) > 50
    undocumented = [f"{one.__name__}.{name}" for one, name, member in members if not inspect.getdoc(member)]
    assert undocumented == []
    assert [f"{one.__name__}.{name}" for one, name, _ in members if f"- **`{name}" not in page] == []
    returned = {one.__name__ for one in sdk.returned()}
    assert {"Metrics", "Log", "Receipt", "Costs", "Plan", "Datasets", "RunState"} <= returned
    for framework in ("keras", "lightning", "huggingface"):
        assert f"### stoker.checkpoint.{framework}.StokerCallback\n" in page


def test_the_public_names_are_those_that_can_be_imported() -> None:
    for package in (stoker, stoker.checkpoint):
        assert sorted(package._HOMES) == sorted(package.__all__)


def test_error_codes_are_distinguished() -> None:
    codes = [one.code for one in script("generate").error_classes() if one is not StokerError]
    assert len(codes) == len(set(codes))


def test_what_the_job_page_says_of_local_is_so(tmp_path: Path) -> None:
    """Every remark is about a field, and what providers without containers refuse is said to be."""
    remarks = script("generate")._ON_LOCAL
    names = {one.name for record in job_records() for one in fields(record)}
    assert set(remarks) <= names
    assert "refused" in remarks["image"]
    jobs = {
        "image": {"environment": {"image": "x"}},
        "dockerfile": {"environment": {"dockerfile": "x"}},
    }
    local = load(Setup(Home(tmp_path)))["local"]
    without = FakeProvider()
    for job in jobs.values():
        wanted = Job.read({"name": "x", "run": "true", **job})
        assert admit(wanted, {"local": local})
        with pytest.raises(JobInvalid):
            admit(wanted, {"local": without})


# Environment variables


def environment_variables() -> set[str]:
    """Names that the code reads or sets: Stoker's own, what is looked up in something called `environ`, and what looks
    like a variable, or the beginning or end of one, where an environment is put together or settings are read."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        everything = path.name in ("launch.py", "settings.py") and path.relative_to(SOURCE).parts[0] in PROGRAMS
        shape = r"(?:\A|(?<= ))(?:_?[A-Z]+(?:_[A-Z]+)+|[A-Z]+_|_proxy|_PROXY)(?=\Z| )" if everything else r"(?!)"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(rf"{shape}|\A_?STOKER_[A-Z_]+", node.value))
            if isinstance(node, ast.Call | ast.Subscript):
                of = node.func if isinstance(node, ast.Call) else node.value
                key = node.args[0] if isinstance(node, ast.Call) and node.args else getattr(node, "slice", None)
                if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                    continue
                if re.search(r"\b(environ|given|env|variables)(\.get)?$|\.variable$", ast.unparse(of)):
                    found.add(key.value)
    return {name for name in found if name.upper() == name or name == "_proxy"}


def test_every_environment_variable_is_documented() -> None:
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    variables = environment_variables()
    known = {"STOKER_HOME", "STOKER_SLOTS", "STOKER_RUN", "NO_COLOR", "WORLD_SIZE", "HOME", "CURL_CA_BUNDLE", "CUDA_"}
    assert known <= variables
    families = tuple(re.findall(r"`([A-Z_]+_)\*`", page))
    missing = {name for name in variables if f"`{name}" not in page and f"`*{name}`" not in page}
    assert sorted(name for name in missing if not name.startswith(families)) == []


# Links, examples, words


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for link in links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose(page))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert [str(page) for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in seen] == []


@each_page
def test_every_job_in_the_docs_is_one_that_this_computer_takes(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "yaml"):
        file = tmp_path / "stoker.yaml"
        needed = [line for line in ("name: x", "run: 'true'") if not re.search(rf"^{line.split(':')[0]}:", text, re.M)]
        file.write_text("\n".join([*needed, text]))
        with suppress(NotSetUp):  # a cloud that this computer has no account for
            admit(jobfile.read(file).job, load(Setup(Home(tmp_path))))


@each_page
def test_every_command_in_the_docs_exists_with_its_options(page: Path) -> None:
    known = dict(commands())
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^(?:\$ )?(stoker [a-z].*)$", "\n".join(blocks(page, "(?:console|sh)")), re.M)
    lines += re.findall(r"`(stoker [a-z][^`]*)`", text)
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # `stoker` in the middle of a shell's own syntax
            words = line.split()
        words = words[: words.index("--")] if "--" in words else words  # what follows is another program's
        path = next((" ".join(words[:end]) for end in (4, 3, 2) if " ".join(words[:end]) in known), "")
        assert path, f"{page}: {line}"
        options = {name for one in known[path].params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        used = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z-]*(=.*)?|-[a-z]", word)}
        assert used <= options, f"{page}: {line}"


def test_every_word_of_the_glossary_is_used() -> None:
    glossary = ROOT / "docs" / "glossary.md"
    words = re.findall(r"^\| ([a-z]+) \|", glossary.read_text(encoding="utf-8"), re.M)[1:]
    used = "\n".join(prose(page) for page in PAGES if page != glossary).lower()
    assert len(words) > 20
    assert [word for word in words if not re.search(rf"\b{word}s?\b", used)] == []


def test_every_test_that_the_docs_name_exists() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(SOURCE / "testing").rglob("*.py")]
    defined = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}
    for page in PAGES:
        for name in re.findall(r"`((?:test_\w+)|(?:tests/[\w/.]+))`", page.read_text(encoding="utf-8")):
            if name.startswith("tests/"):
                assert (ROOT / name).exists(), f"{page}: {name}"
            elif name.endswith(".py"):
                assert list((ROOT / "tests").rglob(name)), f"{page}: {name}"
            else:
                assert name in defined, f"{page}: {name}"


# docs/record.py makes the recordings; here only its judgement is tested.


def test_a_recording_that_differs_in_figures_alone_is_the_same() -> None:
    essence = script("record").essence
    assert essence("a-1 succeeded in 1.2 s, code 3f9c2ab1 (3.1 kB uploaded)") == essence(
        "a-1 succeeded in 12 s, code 88aa2ab1 (3.0 kB uploaded)"
    )
    assert essence('{"epoch": 1, "loss": 0.5}\n…\n{"epoch": 9, "loss": 0.1}') == essence(
        '{"epoch": 1, "loss": 0.4}\n{"epoch": 2, "loss": 0.3}\n…\n{"epoch": 7, "loss": 0.2}'
    )


@pytest.mark.parametrize("other", ["a-1 failed in 1.2 s", "a-2 succeeded in 1.2 s", "a-1 succeeded in 1.2 s\nhint: x"])
def test_a_recording_that_says_something_else_is_not_the_same(other: str) -> None:
    essence = script("record").essence
    assert essence("a-1 succeeded in 1.2 s") != essence(other)
