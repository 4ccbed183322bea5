from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.client.settings import from_environment


def test_nothing_set_means_this_computers_own_server_in_the_users_folder() -> None:
    settings = from_environment({"HOME": "/home/ada", "USER": "ada"})
    assert settings.home.root == Path("/home/ada/.stoker")
    assert (settings.server, settings.token, settings.person) == ("", "", "ada")
    assert settings.local


def test_the_home_can_be_moved() -> None:
    assert from_environment({"STOKER_HOME": "/scratch/stoker"}).home.root == Path("/scratch/stoker")
    assert from_environment({"STOKER_HOME": "here"}).home.root == Path.cwd() / "here"


def test_a_server_elsewhere_is_named_with_its_token() -> None:
    settings = from_environment({"STOKER_SERVER": "https://stoker.example/ ", "STOKER_TOKEN": "t"})
    assert (settings.server, settings.token, settings.local) == ("https://stoker.example", "t", False)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("place", ["bin/python", "Scripts/python.exe"])
def test_the_active_environment_runs_the_script(tmp_path: Path, variable: str, place: str) -> None:
    python = tmp_path / place
    python.parent.mkdir()
    python.touch()
    assert from_environment({variable: str(tmp_path)}).python == str(python)


def test_an_environment_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    assert from_environment({"VIRTUAL_ENV": str(tmp_path / "gone")}).python == sys.executable


def test_values_are_not_shown() -> None:
    assert "hf_secret" not in repr(from_environment({"HF_TOKEN": "hf_secret"}))


def test_somebody_submits_even_where_no_variable_names_them() -> None:
    assert isinstance(from_environment({}).person, str)


def test_a_server_is_started_with_the_same_home() -> None:
    settings = from_environment({"STOKER_HOME": "relative", "PATH": "/bin"})
    assert settings.for_server() == {"STOKER_HOME": str(Path.cwd() / "relative"), "PATH": "/bin"}
