"""Instance segmentation: what may be wrong with its data, that it learns, and that an eviction changes nothing."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from project import ROOT, Project

from stoker.client.submit import jobfile

pytestmark = pytest.mark.timeout(400)  # importing torch takes long on a busy machine
RCNN = Project("mask_rcnn")
VISION = str(ROOT / ".services" / "vision")  # torchvision lies apart: others may not find it without its operators
coco, scenes, prepare = RCNN.modules("coco", "scenes", "prepare")
Json = dict[str, Any]


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    folder: Path = scenes.draw(tmp_path / "set", 8, 4)
    return folder


def changed(folder: Path, change: Callable[[Json], object]) -> str:
    """What is said of the set after its annotations were changed."""
    file = folder / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return refusal(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(prepare.Problem) as caught:
        prepare.check(coco.find(str(folder), folder))
    return str(caught.value)


# Data


def test_drawn_scenes_are_the_same_again_with_small_objects_and_crowds(tmp_path: Path) -> None:
    one, other = (scenes.draw(tmp_path / name, 40, 2) for name in ("one", "other"))
    files = sorted(path.relative_to(one) for path in one.rglob("*.*"))
    assert len(files) == 40 + 2 + 2
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in files)
    content = json.loads((one / "annotations" / "instances_train.json").read_text())
    crowds = [a for a in content["annotations"] if a["iscrowd"]]
    assert crowds and all(isinstance(a["segmentation"]["counts"], list) for a in crowds)
    assert any(a["area"] < 200 for a in content["annotations"] if not a["iscrowd"])
    assert {a["category_id"] for a in content["annotations"]} == {1, 2, 3}


def test_masks_are_those_of_the_drawing_and_crowds_are_not_learned(drawn: Path) -> None:
    found = coco.Scenes(drawn, "train")
    for place, record in enumerate(found.images):
        pixels, target = found[place]
        single = [a for a in found.by_image[record["id"]] if not a.get("iscrowd")]
        assert pixels.shape == (3, 128, 128) and len(target["labels"]) == len(single)
        for annotation, box, mask in zip(single, target["boxes"], target["masks"], strict=True):
            assert abs(int(mask.sum()) - annotation["area"]) < 1
            left, top, wide, high = annotation["bbox"]
            assert np.allclose(box.numpy(), [left, top, left + wide, top + high], atol=1.5)


def test_run_lengths_packed_or_not_are_masks_too(drawn: Path) -> None:
    before = coco.Scenes(drawn, "train")[0][1]["masks"]
    file = drawn / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    for number, annotation in enumerate(a for a in content["annotations"] if a["image_id"] == 1 and not a["iscrowd"]):
        packed = coco.masks.merge(coco.masks.frPyObjects(annotation["segmentation"], 128, 128))
        if number % 2:
            annotation["segmentation"] = {"size": [128, 128], "counts": packed["counts"].decode()}
        else:
            pixels = coco.masks.decode(packed).flatten(order="F").tolist()
            edges = [i for i in range(1, len(pixels)) if pixels[i] != pixels[i - 1]]
            counts = [b - a for a, b in zip([0, *edges], [*edges, len(pixels)], strict=True)]
            annotation["segmentation"] = {"size": [128, 128], "counts": counts if not pixels[0] else [0, *counts]}
    file.write_text(json.dumps(content))
    assert coco.Scenes(drawn, "train")[0][1]["masks"].equal(before)


def test_wrong_annotations_are_named_with_their_number(drawn: Path) -> None:
    def first(content: Json) -> Json:
        return next(a for a in content["annotations"] if not a["iscrowd"])

    said = changed(drawn, lambda c: first(c).update(category_id=33))
    assert "instances_train.json: annotation 1: category 33" in said and "nearest is 3" in said
    said = changed(drawn, lambda c: first(c).update(category_id=3, segmentation=[[5, 5, 400, 5, 5, 60]]))
    assert "annotation 1: " in said and "000001.png: x is 400, expected 0 to 128" in said
    said = changed(drawn, lambda c: first(c).update(segmentation=[[5, 5, 9, 9]]))
    assert "annotation 1: " in said and "three points" in said
    said = changed(drawn, lambda c: first(c).update(segmentation={"size": [128, 128], "counts": [3, 4]}))
    assert "count 7 pixels" in said and "16384" in said
    said = changed(drawn, lambda c: first(c).update(image_id=99))
    assert "annotation 1: image 99" in said
    said = changed(drawn, lambda c: c.pop("categories"))
    assert "`categories`" in said


def test_missing_and_truncated_images_are_all_named(drawn: Path) -> None:
    folder = drawn / "images" / "train"
    cut, small = folder / "000002.png", folder / "000005.png"
    cut.write_bytes(cut.read_bytes()[:200])
    coco.Image.new("RGB", (64, 64)).save(small)
    said = refusal(drawn)
    assert f"{cut}: " in said and f"{small}: has 64 by 64" in said
    cut.unlink()
    assert f"{cut}: " in refusal(drawn)
    assert len(coco.Scenes(drawn, "train", here_only=True)) == 7
    assert len(coco.Scenes(drawn / "annotations", "train", drawn / "images", here_only=True)) == 7
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(coco.Problem, match="no image"):
        coco.Scenes(drawn, "train", here_only=True)
    assert f"{drawn}/elsewhere: " in refusal(drawn / "elsewhere")


def test_one_class_is_enough(drawn: Path) -> None:
    for part in ("train", "val"):
        file = drawn / "annotations" / f"instances_{part}.json"
        content = json.loads(file.read_text())
        content["categories"] = content["categories"][:1]
        content["annotations"] = [a | {"category_id": 1} for a in content["annotations"]]
        file.write_text(json.dumps(content))
    assert prepare.check(drawn).startswith("train: 8 images")
    assert set(coco.Scenes(drawn, "train")[0][1]["labels"].tolist()) == {1}


def test_the_published_set_is_made_of_its_zip_files_and_only_of_the_right_ones(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zips, archives = tmp_path / "zips", []
    zips.mkdir()
    parts = (("train2017", drawn / "images/train"), ("val2017", drawn / "images/val"), ("annotations", None))
    for archive, (name, images) in zip(prepare.COCO_2017, parts, strict=True):
        file = zips / Path(archive.path).name
        with zipfile.ZipFile(file, "w") as packed:
            for path in images.iterdir() if images else ():
                packed.write(path, f"{name}/{path.name}")
            for part in ("train", "val") if not images else ():
                source = drawn / "annotations" / f"instances_{part}.json"
                packed.write(source, f"annotations/instances_{part}2017.json")
                packed.writestr(f"annotations/captions_{part}2017.json", "{}")
        archives.append(archive._replace(md5=hashlib.md5(file.read_bytes()).hexdigest()))
    with pytest.raises(prepare.Problem, match="md5"):
        prepare.unpacked(zips, tmp_path / "coco")
    assert not (tmp_path / "coco").exists()
    monkeypatch.setattr(prepare, "COCO_2017", tuple(archives))
    assert prepare.check(prepare.unpacked(zips, tmp_path / "coco")) == prepare.check(drawn)
    assert sorted(path.name for path in (tmp_path / "coco" / "annotations").iterdir()) == [
        "instances_train.json",
        "instances_val.json",
    ]


# Training


def program(name: str, *args: object, folder: Path, code: int = 0) -> str:
    return RCNN.program(name, *args, folder=folder, code=code, PYTHONPATH=VISION, OMP_NUM_THREADS="1")


@pytest.mark.heavy
def test_trained_for_a_minute_it_finds_what_an_untrained_network_does_not(tmp_path: Path) -> None:
    data = scenes.draw(tmp_path / "set", 120, 24)
    program("train.py", "--data", data, "--epochs", 0, "--output_dir", "untrained", folder=tmp_path)
    said = program("train.py", "--data", data, "--epochs", 5, "--evaluate_every", 5, folder=tmp_path)
    assert "Epoch 5/5" in said and "mask_ap" in said
    figures = {}
    for name in ("untrained", "outputs"):
        model = tmp_path / name / "model.safetensors"
        program("evaluate.py", model, "--data", data, "--output_dir", name, folder=tmp_path)
        figures[name] = json.loads((tmp_path / name / "evaluation.json").read_text())
    assert figures["untrained"]["mask_ap"] < 0.02
    assert figures["outputs"]["mask_ap"] > 0.2 and figures["outputs"]["box_ap"] > 0.2
    photos = data / "images" / "val"
    said = program("predict.py", tmp_path / "outputs" / "model.safetensors", photos, folder=tmp_path)
    page = (tmp_path / "outputs" / "photos.html").read_text()
    assert "000001.png: " in said and page.count("<figure>") == 24 and "data:image/png;base64," in page
    assert (tmp_path / "outputs" / "000001-objects.png").exists()
    assert f"error: {__file__}: " in program("predict.py", __file__, photos, folder=tmp_path, code=1)


KILLED_WHILE_IT_JUDGES = """
import os, runpy, sys
import stoker.checkpoint as library
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import evaluate
made = []
class Watched(library.Checkpoint):
    def __init__(self, **parts):
        super().__init__(every=1, **parts)
        made.append(self)
def killed(*_):
    made[0].finish()
    os._exit(9)
library.Checkpoint, evaluate.precision = Watched, killed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.heavy
def test_killed_while_it_judges_an_epoch_it_resumes_with_that(drawn: Path, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED_WHILE_IT_JUDGES)
    given = ("--data", drawn, "--epochs", 1, "--evaluate_every", 1)
    program(str(tmp_path / "killed.py"), RCNN.folder / "train.py", *given, folder=tmp_path, code=9)
    assert "Epoch 1/1  loss " in program("train.py", *given, folder=tmp_path)
    too_few = program("train.py", "--data", drawn, "--batch_size", 16, folder=tmp_path, code=1)
    assert "instances_train.json: has 8 images" in too_few


def run(stoker: Callable[..., str], name: str, script: str, data: Path, evicted_at: str | None) -> Json:
    """A run on two nodes of this computer, evicted once its log has `evicted_at`."""
    job = {
        "name": name,
        "run": f"python {script} --data {data} --epochs 5 --evaluate_every 1 --output_dir ${{outputs}}",
        "source": str(RCNN.folder),
        "environment": {"python": sys.executable},
        "nodes": 2,
        "env": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": VISION},
    }
    if script == "train_plain.py":
        job["checkpoints"] = "checkpoints"
    (data.parent / "stoker.yaml").write_text(json.dumps(job))
    stoker("run", "--detach")
    if evicted_at:
        wait_for(lambda: evicted_at in logged(stoker, name), lambda: logged(stoker, name))
        stoker("evict", f"{name}-1", "--notice", "1s")
    stoker("logs", f"{name}-1", "-f")
    facts: Json = json.loads(stoker("show", f"{name}-1", "--json"))["run"]
    assert facts["state"] == "succeeded", stoker("logs", f"{name}-1")
    return facts


@pytest.mark.heavy
def test_evicted_once_two_nodes_end_with_the_same_bits(tmp_path: Path, stoker: Callable[..., str]) -> None:
    data = scenes.draw(tmp_path / "set", 32, 4)
    run(stoker, "calm", "train.py", data, None)
    facts = run(stoker, "evicted", "train.py", data, "Epoch 1/5")
    assert len(facts["attempts"]) == 2
    models = [(tmp_path / "outputs" / f"{name}-1" / "model.safetensors").read_bytes() for name in ("calm", "evicted")]
    assert models[0] == models[1]
    assert facts["metrics"]["mask_ap"]["count"] >= 3


@pytest.mark.heavy
def test_the_plain_script_resumes_from_its_own_file(tmp_path: Path, stoker: Callable[..., str]) -> None:
    data = scenes.draw(tmp_path / "set", 32, 4)
    facts = run(stoker, "plain", "train_plain.py", data, "Epoch 2/5")
    assert "Resuming from epoch " in stoker("logs", "plain-1")
    assert facts["metrics"]["mask_ap"]["count"] >= 1
    assert (tmp_path / "outputs" / "plain-1" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_small_form_of_the_readme_has_a_mask_ap_above_one_half(tmp_path: Path) -> None:
    program("train.py", "--batch_size", 4, "--cache", tmp_path / "cache", folder=tmp_path)
    assert json.loads((tmp_path / "outputs" / "result.json").read_text())["mask_ap"] > 0.5


def logged(stoker: Callable[..., str], name: str) -> str:
    with suppress(AssertionError):  # there is none yet
        return stoker("logs", f"{name}-1")
    return ""


def wait_for(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    until = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < until, told()
        time.sleep(0.2)


# The files around it


def test_the_same_script_runs_small_and_on_the_published_set() -> None:
    small, large = (jobfile.read(RCNN.folder / name).job for name in ("stoker.yaml", "coco.yaml"))
    assert small.run.startswith("python train.py ") and large.run.startswith("python train.py ")
    assert (small.nodes, large.nodes) == (2, 4)
