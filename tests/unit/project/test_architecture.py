"""The drawing, checked: arrows point down, the light packages stay light, and plug-ins are named nowhere else."""

import ast
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.agent.pack import pack
from stoker.stores.kinds import kinds

SOURCE = Path(__file__).parents[3] / "src" / "stoker"

# What each package may import from Stoker, besides itself and `errors`.
ARROWS = {
    "model": set(),
    "files": set(),
    "containers": set(),
    "engine": {"model"},
    "stores": {"model", "files"},
    # `agent` only to pack it, `stores` to put it where nodes fetch it
    "providers": {"model", "files", "agent", "stores", "containers"},
    "agent": {"model", "files", "stores", "containers"},
    "checkpoint": set(),
    "notebooks": set(),  # in the user's process, too
    "client": {"model", "files", "stores", "notebooks"},
    "cli": {"model", "client"},
    "server": {"model", "files", "engine", "providers", "stores", "containers"},
    "twin": {"model", "files"},
    "testing": {"model", "files", "engine", "providers", "stores", "containers", "server", "twin"},
}
STANDARD_LIBRARY_ONLY = {"model", "files", "containers", "engine", "agent", "checkpoint", "notebooks"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


class Parsed(NamedTuple):
    imports: list[str]
    reads_environment: bool


@cache
def parsed(path: Path) -> Parsed:
    """What the tests ask of a file. Parsing the package takes seconds, and keeping its trees hundreds of megabytes."""
    imports: list[str] = []
    reads_environment = False
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            reads_environment |= node.attr in ("environ", "getenv")
    return Parsed(imports, reads_environment)


def imports(path: Path) -> list[str]:
    """Absolute names of everything the module imports, also inside functions."""
    return parsed(path).imports


def third_party(names: list[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"stoker"}


def test_every_package_is_in_the_drawing() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(ARROWS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_down(path: Path) -> None:
    here = room(path)
    if here in ("__init__", "errors"):
        return
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("stoker.")}
    allowed = ARROWS[here] | {here, "errors", "__version__"}
    assert inside <= allowed, f"{here} imports {inside - allowed}"


@pytest.mark.parametrize("package", sorted(STANDARD_LIBRARY_ONLY))
def test_light_packages_import_only_the_standard_library(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        assert not third_party(imports(path)), path


def carried(tmp_path: Path) -> set[str]:
    with zipfile.ZipFile(pack(tmp_path)) as packed:
        return {name for name in packed.namelist() if name.endswith(".py")}


def test_everything_an_agent_carries_is_standard_library_only(tmp_path: Path) -> None:
    """Follows the agent's imports through `stores` and `model`, down to the last file that it carries. What kinds of
    stores import for a server or a client, inside functions, is not carried."""
    packed = carried(tmp_path)
    seen: set[Path] = set()
    waiting = list((SOURCE / "agent").rglob("*.py"))
    for kind in kinds().values():
        waiting += [found for name in (type(kind).__module__, *kind.carried) if (found := module_file(name))]
    while waiting:
        path = waiting.pop()
        if path in seen or path.relative_to(SOURCE.parent).as_posix() not in packed:
            continue
        seen.add(path)
        names = imports(path)
        assert not third_party(names), path
        waiting += [found for name in names if (found := module_file(name))]
    assert {SOURCE / "stores" / kind / "kind.py" for kind in ("azure", "folder", "s3")} <= seen


def test_an_agent_carries_the_node_side_of_every_kind_of_store_and_nothing_else_of_it(tmp_path: Path) -> None:
    packed = carried(tmp_path)
    for kind in kinds().values():
        package = type(kind).__module__.rpartition(".")[0].replace(".", "/")
        wanted = {f"{name.replace('.', '/')}.py" for name in (type(kind).__module__, *kind.carried)}
        assert {name for name in packed if name.startswith(f"{package}/")} == wanted | {f"{package}/__init__.py"}
        for name in wanted:
            text = (SOURCE.parent / name).read_text(encoding="utf-8")
            needed = {node.module for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)}
            files = {path for module in needed if (path := module_file(f"{module}.any"))}
            assert {path.relative_to(SOURCE.parent).as_posix() for path in files} <= packed, name


def test_no_kind_of_store_is_named_outside_its_own_folder() -> None:
    """But for the folder itself, which every computer has, and services that tests start."""
    own = {type(kind).__module__.split(".")[2] for kind in kinds().values()} - {"folder"}
    for path in modules():
        inside = path.relative_to(SOURCE).parts
        if inside[0] == "testing" or inside[:2] in {("stores", one) for one in own}:
            continue
        named = {name.split(".")[2] for name in imports(path) if name.startswith("stoker.stores.")}
        assert not named & own, path


def node_plugins() -> list[Path]:
    """What providers ship with the agent."""
    return sorted((SOURCE / "providers").glob("*/node/**/*.py"))


@pytest.mark.parametrize("path", node_plugins(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_a_provider_ships_with_the_agent_needs_nothing_but_what_the_agent_has(path: Path) -> None:
    """On a node the packages above it are empty."""
    names = imports(path)
    own = f"stoker.providers.{path.relative_to(SOURCE / 'providers').parts[0]}.node."
    assert not third_party(names)
    for name in names:
        assert not name.startswith("stoker.providers.") or name.startswith(own), name
        assert not name.startswith("stoker.") or name.split(".")[1] in ("agent", "errors", "model", "providers"), name


CLOUDS = re.compile(
    r"\b(azure|aws|amazon|ec2|gce|gcp|google cloud|169\.254\.169\.254|scheduled ?events)\b", re.IGNORECASE
)
OF_A_STORE = {"agent/data/mounting.py"}  # which tools mount which kind of store


@pytest.mark.parametrize("path", sorted((SOURCE / "agent").rglob("*.py")), ids=lambda path: path.name)
def test_the_agent_names_no_cloud(path: Path) -> None:
    if path.relative_to(SOURCE).as_posix() not in OF_A_STORE:
        assert not CLOUDS.findall(path.read_text(encoding="utf-8"))


def module_file(name: str) -> Path | None:
    parts = name.split(".")[1:] if name.startswith("stoker.") else []
    for end in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return None


def test_no_plug_in_is_named_outside_its_own_file() -> None:
    plugins = {path.stem for path in (SOURCE / "providers").iterdir()} - {"__init__", "__pycache__"}
    for path in modules():
        if room(path) == "providers":
            continue
        named = {name for name in imports(path) if name.startswith("stoker.providers.")}
        assert not {name.split(".")[2] for name in named} & plugins, path


def test_names_say_something() -> None:
    empty = {"utils", "helpers", "common", "core", "base", "manager", "misc"}
    assert not [path for path in modules() if path.stem in empty]


def test_every_package_opens_with_one_sentence() -> None:
    for path in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_each_program_reads_the_environment_in_one_file() -> None:
    readers = {path.relative_to(SOURCE).as_posix() for path in modules() if parsed(path).reads_environment}
    per_program: dict[str, list[str]] = {}
    for reader in readers:
        program = {"cli": "client"}.get(reader.split("/")[0], reader.split("/")[0])
        per_program.setdefault(program, []).append(reader)
    assert all(len(files) == 1 for files in per_program.values()), per_program


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """Pytest imports them by it: of two with the same name one is left out, with an error."""
    names = [path.name for path in (SOURCE.parents[1] / "tests").rglob("test_*.py") if "scripts" not in path.parts]
    assert sorted(names) == sorted(set(names))


def test_providers_and_stores_load_without_the_packages_of_extras() -> None:
    """A server loads all of them at its start, whatever is installed."""
    script = """
import sys
from importlib.metadata import entry_points

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("azure", "msal", "msrest", "optuna", "ray", "requests"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
for group in ("stoker.providers", "stoker.stores", "stoker.groundworks", "stoker.containers"):
    for one in entry_points(group=group):
        one.load()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
