"""Scripts after the shape of public ones, as they are: what `stoker init` proposes for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shapes import SCRIPTS, SHAPES

from stoker.client.script.starter import propose
from stoker.client.submit import jobfile


def test_every_folder_of_scripts_is_tried() -> None:
    assert {path.name for path in SCRIPTS.iterdir() if path.is_dir()} == SHAPES.keys()
    assert len([name for name, shape in SHAPES.items() if shape.story.lost]) >= 30


@pytest.mark.parametrize("name", SHAPES)
def test_init_finds_the_script_what_it_keeps_and_how_it_resumes(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    shutil.copytree(SCRIPTS / name, tmp_path / name)
    place = tmp_path / name / shape.folder
    found = propose(place)
    (place / "stoker.yaml").write_text(found.text)
    job = jobfile.read(place / "stoker.yaml").job
    assert (job.run, job.outputs, job.checkpoints) == (shape.run, shape.outputs, shape.checkpoints)
    assert (job.resume, job.launcher, job.create_folders) == (shape.resume, shape.launcher, not shape.creates)
    assert not found.others
    assert any("loads no checkpoint" in line for line in found.advice) == (shape.story.lost is None), found.advice
