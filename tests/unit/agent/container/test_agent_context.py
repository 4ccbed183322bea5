"""What an image is built from, and that its name depends on that alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.agent.container.container import image_source
from stoker.agent.machine.machine import NodeFolder
from stoker.model.job.job import Environment


def named(root: Path, code: Mapping[str, str | None], context: str | None = None) -> str:
    """The image that a node builds from this code; None is an empty folder."""
    folder = NodeFolder(root)
    for path, text in code.items():
        file = folder.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            file.mkdir()
        else:
            file.write_text(text)
    return image_source(Environment(dockerfile="Dockerfile", context=context), folder, code.keys()).image


def test_every_node_gives_the_same_code_the_same_image(tmp_path: Path) -> None:
    code = {"Dockerfile": "FROM x", "lib/a.py": "1", "empty": None}
    assert named(tmp_path / "1", code) == named(tmp_path / "2", code)


def test_a_file_in_another_folder_makes_another_image(tmp_path: Path) -> None:
    first, second = ({"Dockerfile": "FROM x", f"{folder}/a.py": "1"} for folder in ("lib", "src"))
    assert named(tmp_path / "1", first) != named(tmp_path / "2", second)


def test_files_outside_the_context_do_not_count(tmp_path: Path) -> None:
    first, second = ({"Dockerfile": "FROM x", "lib/a.py": "1", "train.py": text} for text in ("1", "2"))
    assert named(tmp_path / "1", first, "lib") == named(tmp_path / "2", second, "lib")
    assert not (tmp_path / "1" / "context" / "train.py").exists()
