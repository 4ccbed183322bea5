"""Which packages of a Python are uploaded, on environments that consist of files: no interpreter is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softwaresite import Site
from stoker.client.settings import from_environment
from stoker.client.software.choosing import PackageChoice
from stoker.client.software.installed import Installed
from stoker.client.software.packages import cloud
from stoker.client.source.tree import scan
from stoker.errors import JobInvalid
from stoker.model.job.job import Job


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.site = Site(tmp_path / "venv")
        self.root = tmp_path / "project"
        self.root.mkdir()
        self.home = tmp_path / "home"
        self.environ: dict[str, str] = {}
        self.notes: list[str] = []

    def chosen(self, script: str, run: str = "python train.py", **more: Any) -> set[str]:
        (self.root / "train.py").write_text(script)
        given = {"VIRTUAL_ENV": str(self.site.root), "STOKER_HOME": str(self.home), **self.environ}
        (self.site.root / "bin" / "python").touch()
        settings = from_environment(given)
        assert settings.python == self.site.python
        job = Job(name="x", run=run, **more)
        choice = PackageChoice(job, scan(self.root), settings, Installed.of(self.site.python), cloud("3.11.4"))
        found = set(choice.imported())
        self.notes = choice.notes
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_imports_become_packages_with_all_that_they_need(world: World) -> None:
    world.site.install("scikit-learn", files={"sklearn/__init__.py": ""}, requires=["joblib>=1", "numpy"])
    world.site.install("joblib", requires=["colorama ; sys_platform == 'win32'", "cloudpickle[fast]"])
    world.site.install("cloudpickle", requires=["speedups ; extra == 'fast'", "slow ; extra == 'dev'"])
    for name in ("numpy", "colorama", "speedups", "slow", "jupyter"):
        world.site.install(name)
    assert world.chosen("from sklearn.svm import SVC") == {"scikit-learn", "joblib", "cloudpickle", "numpy", "speedups"}


def test_packages_that_share_a_folder_are_distinguished(world: World) -> None:
    world.site.install("azure-identity", files={"azure/identity/__init__.py": ""})
    world.site.install("azure-core", files={"azure/core/__init__.py": "", "azure/core/rest.py": ""})
    world.site.install("protobuf", files={"google/protobuf/__init__.py": ""})
    assert world.chosen("from azure.core import rest\nimport google.protobuf.message") == {"azure-core", "protobuf"}


def test_modules_that_are_one_file_or_compiled_are_found(world: World) -> None:
    world.site.install("six", files={"six.py": ""})
    world.site.install("fast", files={"_fast.cpython-311-x86_64-linux-gnu.so": "", "other.abi3.so": ""})
    assert world.chosen("import six, _fast") == {"six", "fast"}


def test_optional_parts_of_what_is_imported_come_along_and_tools_stay(world: World) -> None:
    extras = ["pyarrow ; extra == 'parquet'", "pytest ; extra == 'parquet'", "sphinx ; extra == 'docs'"]
    world.site.install("pandas", requires=[*extras, "missing ; extra == 'excel'"])
    for name in ("pyarrow", "pytest", "sphinx"):
        world.site.install(name)
    assert world.chosen("import pandas") == {"pandas", "pyarrow"}


def test_of_several_frameworks_that_a_library_knows_the_one_in_use_comes_along(world: World) -> None:
    needs = ["torch ; extra == 'torch'", "tensorflow ; extra == 'tf'", "jax ; extra == 'flax'"]
    world.site.install("transformers", requires=needs)
    for name in ("torch", "tensorflow", "jax", "accelerate"):
        world.site.install(name)
    assert world.chosen("import transformers, jax") == {"transformers", "jax", "accelerate"}
    assert world.chosen("import transformers") == {"transformers", "torch", "accelerate"}


@pytest.mark.parametrize(("backend", "comes"), [("torch", "torch"), ("jax", "jax"), ("", "tensorflow")])
def test_keras_brings_the_back_end_that_is_set(world: World, backend: str, comes: str) -> None:
    for name in ("keras", "torch", "jax", "tensorflow"):
        world.site.install(name)
    world.environ = {"KERAS_BACKEND": backend}
    assert world.chosen("import keras") == {"keras", comes}


def test_files_beside_the_script_name_more(world: World) -> None:
    for name in ("six", "idna", "click", "unused"):
        world.site.install(name)
    (world.root / "requirements.txt").write_text("# what it needs\nidna>=3\n-r more.txt\nnot-here\n")
    (world.root / "pyproject.toml").write_text('[project]\nname = "p"\ndependencies = ["Click>=8"]\n')
    assert world.chosen("import six") == {"six", "idna", "click"}


def test_packages_that_the_job_names_come_besides(world: World) -> None:
    world.site.install("plug-in", requires=["idna"])
    world.site.install("idna")
    world.site.install("six")
    assert world.chosen("import six", environment={"packages": ["Plug_In"]}) == {"six", "plug-in", "idna"}
    with pytest.raises(JobInvalid, match="plug-out"):
        world.chosen("import six", environment={"packages": ["plug-out"]})


def test_the_package_of_a_command_comes_along(world: World) -> None:
    world.site.install("accelerate", commands=["accelerate", "accelerate-config"])
    world.site.install("lightning", commands=["fabric"])
    assert world.chosen("", run="accelerate launch train.py") == {"accelerate"}
    assert world.chosen("", run="python -m lightning") == {"lightning"}


def test_stoker_and_what_it_needs_itself_stay(world: World) -> None:
    world.site.install("stoker", requires=["click"])
    world.site.install("click")
    assert world.chosen("import stoker.checkpoint") == set()


def test_an_editable_package_is_found_and_read_for_what_it_imports(world: World, tmp_path: Path) -> None:
    project = tmp_path / "mylib"
    (project / "src" / "mylib").mkdir(parents=True)
    (project / "src" / "mylib" / "__init__.py").write_text("import six")
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    world.site.install("my-lib", files={"_my_lib.pth": f"{project}/src\n"}, origin=origin)
    world.site.install("six", files={"six.py": ""})
    assert world.chosen("import mylib") == {"my-lib", "six"}


def test_what_is_not_installed_or_lies_elsewhere_is_reported(world: World, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "ours.py").touch()
    world.environ = {"PYTHONPATH": str(tmp_path / "shared")}
    assert world.chosen("import ours, nowhere\ntry:\n    import apex\nexcept ImportError:\n    pass\n") == set()
    assert world.notes == [
        f"`ours`, which train.py imports, is in {tmp_path / 'shared'}, which is not uploaded: "
        "make it part of the source",
        f"`nowhere`, which train.py imports, is not installed in {world.site.python}",
    ]


def test_a_script_of_the_standard_library_needs_no_package(world: World) -> None:
    world.site.install("six")
    assert world.chosen("import json, os.path, sqlite3") == set()
    assert world.notes == []


def test_local_versions_are_known_by_their_public_ones(world: World) -> None:
    world.site.install("torch", version="2.4.0+cpu")
    assert Installed.of(world.site.python).by_name["torch"].public == "2.4.0"
