from __future__ import annotations

import pytest

from stoker.client.software.packages import Requirement, cloud, normal, parse

HERE = cloud("3.11.4")


@pytest.mark.parametrize(
    ("marker", "held"),
    [
        ("sys_platform == 'linux'", True),
        ("sys_platform == 'darwin'", False),
        ("platform_system == 'Linux' and platform_machine == 'x86_64'", True),
        ("python_version < '3.11'", False),
        ("python_version >= '3.9'", True),
        ("python_version == '3.11.*'", True),
        ("python_full_version >= '3.11.3'", True),
        ("python_version ~= '3.10'", True),
        ("python_version ~= '4.0'", False),
        ("sys_platform == 'win32' or (os_name == 'posix' and python_version > '3.8')", True),
        ("platform_machine not in 'arm64 aarch64'", True),
        ("'linux' in sys_platform", True),
        ("extra == 'torch'", False),
        ('(extra == "test") and python_version > "3.0"', False),
        ("python_version < '3.10' or extra == 'x'", False),
        ("some nonsense ((", True),
    ],
)
def test_markers_are_answered_for_a_machine_of_a_cloud(marker: str, held: bool) -> None:
    assert Requirement("x", marker=marker).holds(HERE) is held


def test_an_extra_that_is_wanted_brings_what_it_names() -> None:
    need = parse("Torch_Vision[video,gpu] >=0.1 ; extra == 'vision' and python_version > '3'")
    assert need == Requirement(
        "torch-vision", frozenset({"video", "gpu"}), "extra == 'vision' and python_version > '3'"
    )
    assert need.holds(HERE, frozenset({"vision"}))
    assert not need.holds(HERE, frozenset({"audio"}))
    assert need.groups == ["vision"]


@pytest.mark.parametrize(
    ("text", "name", "marker"),
    [
        ("numpy", "numpy", ""),
        ("numpy>=1.2,<3", "numpy", ""),
        ("foo.bar_baz (>=1.0)", "foo-bar-baz", ""),
        ("pkg @ https://host/a;b.whl ; os_name == 'nt'", "pkg", "os_name == 'nt'"),
        ("nvidia-cublas==1; platform_system == 'Linux'", "nvidia-cublas", "platform_system == 'Linux'"),
    ],
)
def test_requirements_are_read_in_every_form_that_metadata_has(text: str, name: str, marker: str) -> None:
    found = parse(text)
    assert found
    assert (found.name, found.marker) == (name, marker)


def test_what_is_no_requirement_is_none() -> None:
    assert parse("--index-url x") is None
    assert normal("My_Pkg..name") == "my-pkg-name"
