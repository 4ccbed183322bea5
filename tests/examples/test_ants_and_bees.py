"""Transfer learning: what may be wrong with its data, that it learns, and that an eviction changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from project import Project, environment
from safetensors import safe_open

from stoker.client.submit import jobfile

pytestmark = pytest.mark.timeout(300)  # importing torch takes long on a busy machine
ANTS = Project("ants_and_bees")
draw, images, backbone, problem = ANTS.modules("draw", "images", "backbone", "problem")
QUICK = ("--sample", "4", "--image_size", "48", "--batch_size", "2")  # it learns little, soon


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    draw.draw(folder / "drawn")  # as a machine that does not see this folder does
    return folder


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    folder: Path = draw.draw(tmp_path / "set", 12)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(images.Problem) as caught:
        images.read(folder / "train", images.classes_of(images.find(str(folder), folder)), 32)
    return str(caught.value)


# Data


def test_drawing_is_the_same_again_and_no_two_images_are_alike(drawn: Path, tmp_path: Path) -> None:
    again = draw.draw(tmp_path / "again", 12)
    files = sorted(path.relative_to(drawn) for path in drawn.rglob("*.png"))
    contents = [(drawn / name).read_bytes() for name in files]
    assert contents == [(again / name).read_bytes() for name in files]
    assert len(set(contents)) == len(files) == 12 + 6
    found = images.read(drawn / "train", images.classes_of(drawn), 56, most=2)
    assert (found.pixels.shape, found.labels.tolist()) == ((4, 3, 64, 64), [0, 0, 1, 1])


def test_damaged_images_are_all_named_before_the_training_starts(drawn: Path) -> None:
    cut, empty, text = sorted((drawn / "train" / "ants").iterdir())[:3]
    cut.write_bytes(cut.read_bytes()[:400])
    empty.write_bytes(b"")
    text.write_text("no image")
    (drawn / "train" / "ants" / "notes.txt").write_text("not asked for")
    said = refusal(drawn)
    assert all(f"{path}: " in said for path in (cut, empty, text))
    assert "notes.txt" not in said


def test_a_missing_folder_one_class_and_different_classes_are_refused(drawn: Path, tmp_path: Path) -> None:
    assert f"{tmp_path}/elsewhere: there is no such folder" in refusal(tmp_path / "elsewhere")
    for path in (drawn / "train" / "bees").iterdir():
        path.unlink()
    assert f"{drawn}/train/bees: has no image" in refusal(drawn)
    (drawn / "train" / "bees").rmdir()
    assert f"{drawn}/train: has one class, ants" in refusal(drawn)
    (drawn / "train" / "wasps").mkdir()
    assert "train has the classes ants, wasps, but val ants, bees" in refusal(drawn)


# The model


def test_an_unknown_backbone_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(backbone.Problem) as caught:
        backbone.build("resnet18", 2)
    assert "expected efficientnet_lite0, torchvision:NAME or timm:NAME" in str(caught.value)


def test_a_file_that_is_no_model_of_this_script_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x00" * 100)
    with pytest.raises(backbone.Problem) as caught:
        backbone.load(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.heavy
def test_the_small_form_tells_9_of_10_drawn_images_right_and_validates_them(tmp_path: Path) -> None:
    settings = ("--image_size", 96, "--epochs", 4, "--cache", tmp_path / "cache")
    said = ANTS.program("train.py", *settings, folder=tmp_path)
    assert "Epoch 4/4" in said and "Training complete in" in said
    model = tmp_path / "outputs" / "model.safetensors"
    with safe_open(model, "pt") as file:
        assert json.loads(file.metadata()["model"])["classes"] == ["ants", "bees"]
    table = ANTS.program("validate.py", model, "--cache", tmp_path / "cache", folder=tmp_path)
    found = json.loads((tmp_path / "outputs" / "validation.json").read_text())
    assert found["accuracy"] >= 0.9
    assert sum(map(sum, found["confusion"])) == 60
    assert f"accuracy {found['accuracy']:.4f} on 60 images" in table
    with Image.open(tmp_path / "outputs" / "predictions.png") as sheet:
        assert sheet.size == (6 * 152 + 8, 4 * 172 + 8)
    (tmp_path / "cache" / "drawn" / "train" / "wasps").mkdir()
    (tmp_path / "cache" / "drawn" / "val" / "wasps").mkdir()
    refused = ANTS.program("validate.py", model, "--cache", tmp_path / "cache", folder=tmp_path, code=1)
    assert "the model knows ants, bees" in refused


# On a spot machine


@pytest.fixture
def twin(stoker: Callable[..., str]) -> Iterator[Callable[..., str]]:
    yield stoker
    with suppress(AssertionError):
        stoker("twin", "down")


@pytest.mark.heavy
def test_evicted_on_the_twin_it_ends_with_the_same_bits(tmp_path: Path, cache: Path, twin: Callable[..., str]) -> None:
    settings = " ".join([*QUICK, "--epochs", "40", "--cache", str(cache)])
    alone = tmp_path / "alone"
    alone.mkdir()
    env: dict[str, Any] = {"OMP_NUM_THREADS": "1"}
    ANTS.program("train.py", *settings.split(), folder=alone, **env)
    job = {
        "name": "ants",
        "run": f"python train.py {settings} --output_dir ${{outputs}}",
        "source": str(ANTS.folder),
        "environment": {"python": sys.executable},
        "on": "azure",
        "spot": True,
        "cpus": 4,
        "env": env,
    }
    (tmp_path / "stoker.yaml").write_text(json.dumps(job))
    twin("run", "--twin", "--detach")
    wait_for(lambda: "Epoch 1/" in logged(twin), lambda: logged(twin))
    twin("twin", "evict", "ants-1", "--notice", "2s")
    twin("logs", "ants-1", "-f")
    facts = json.loads(twin("show", "ants-1", "--json"))["run"]
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 2), facts
    assert facts["metrics"]["val_acc"]["count"] >= 40
    one, other = (folder / "outputs" for folder in (tmp_path, alone))
    assert (one / "ants-1" / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert json.loads(twin("cleanup", "--json"))["left"] == []


def logged(stoker: Callable[..., str]) -> str:
    with suppress(AssertionError):  # there is none yet
        return stoker("logs", "ants-1")
    return ""


def wait_for(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    until = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < until, told()
        time.sleep(0.2)


# The files around it


def test_the_same_script_runs_here_and_on_the_teams_machines() -> None:
    here, team = (jobfile.read(ANTS.folder / name).job for name in ("stoker.yaml", "team.yaml"))
    assert here.name == team.name == "ants-and-bees"
    assert here.run.startswith("python train.py ") and team.run.startswith("python train.py ")
    assert "--epochs 25" in team.run


@pytest.mark.heavy
def test_the_notebook_submits_watches_and_shows_predictions(tmp_path: Path, stoker: Callable[..., str]) -> None:
    cells = json.loads((ANTS.folder / "submit.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script = tmp_path / "cells.py"
    script.write_text(code.replace("display(", "print("))
    env = environment(STOKER_HOME=str(tmp_path / "home"), EPOCHS="1", SAMPLE="8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ANTS.folder, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "val_acc" in done.stdout and "Image" in done.stdout
    assert "ants-and-bees-1" in stoker("ps", "--all")
