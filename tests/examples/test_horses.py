"""The image classifier: what may be wrong with its data, that it learns, and that evictions change nothing."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from project import ROOT, Project

from stoker.client.submit import jobfile

pytestmark = pytest.mark.timeout(300)  # importing Keras takes long on a busy machine
HORSES = Project("horses_or_humans")
download, draw, images = HORSES.modules("download", "draw", "images")
Problem = images.Problem
QUICK = ("--data", "drawn:24", "--image_size", "32", "--batch_size", "12")  # it learns nothing, soon
ENV: dict[str, Any] = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = draw.draw(tmp_path_factory.mktemp("drawn"), "drawn:12")
    return folder


def copied(drawn: Path, to: Path) -> Path:
    for path in drawn.rglob("*.png"):
        place = to / path.relative_to(drawn)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    return to


def refusal(folder: Path, cache: Path) -> str:
    with pytest.raises(Problem) as caught:
        images.read_data(str(folder), 32, cache)
    assert not cache.exists(), "nothing half-written"
    return str(caught.value)


# Data


def test_drawing_is_the_same_again_and_no_two_images_are_alike(drawn: Path, tmp_path: Path) -> None:
    again = draw.draw(tmp_path, "drawn:12")
    files = sorted(path.relative_to(drawn) for path in drawn.rglob("*.png"))
    contents = [(drawn / name).read_bytes() for name in files]
    assert contents == [(again / name).read_bytes() for name in files]
    assert len(set(contents)) == len(files) == 12 + 4
    found = images.read_data("drawn:12", 40, tmp_path)
    assert (found.classes, found.train.pixels.shape) == (["horses", "humans"], (12, 40, 40, 3))
    assert np.bincount(found.train.labels).tolist() == [6, 6]
    assert np.bincount(found.validation.labels).tolist() == [2, 2]
    with pytest.raises(Problem, match="`many` is no number of images; expected 2 or more, such as drawn:480"):
        images.read_data("drawn:many", 40, tmp_path)


def test_damaged_images_are_all_named_before_the_training_begins(drawn: Path, tmp_path: Path) -> None:
    folder = copied(drawn, tmp_path / "set")
    cut, empty, text = sorted((folder / "train" / "horses").iterdir())[:3]
    cut.write_bytes(cut.read_bytes()[:400])
    empty.write_bytes(b"")
    text.write_text("no image")
    (folder / "train" / "horses" / "notes.txt").write_text("not asked for")
    said = refusal(folder, tmp_path / "cache")
    assert f"{folder}/train has 3 problems" in said
    assert f"{empty}: is empty" in said
    for path in (cut, text):
        assert f"{path}: is no image that can be read: " in said


def test_one_class_only_is_refused_with_its_folder(drawn: Path, tmp_path: Path) -> None:
    folder = copied(drawn, tmp_path / "set")
    for path in (folder / "train" / "humans").iterdir():
        path.unlink()
    assert f"{folder}/train/humans: holds no image; expected files ending in .png, .jpg" in refusal(
        folder, tmp_path / "cache"
    )
    (folder / "train" / "humans").rmdir()
    assert f"{folder}/train: has one class, horses; expected two or more" in refusal(folder, tmp_path / "cache")
    (folder / "train" / "dogs").mkdir()
    said = refusal(folder, tmp_path / "cache")
    assert "train has the classes dogs, horses, but validation horses, humans" in said
    assert "there is no such folder" in refusal(tmp_path / "elsewhere", tmp_path / "cache")


def packed(drawn: Path, part: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("__MACOSX/horses/._0.png", b"not an image")
        for path in (drawn / part).rglob("*.png"):
            archive.write(path, path.relative_to(drawn / part))
    return held.getvalue()


def parts_of(site: tuple[Any, str], content: bytes) -> dict[str, Any]:
    """A set whose two parts are the same file, which is served by the site."""
    site[0].content = content
    known = download.Archive(site[1], hashlib.sha256(content).hexdigest())
    return {"train": known, "validation": known}


def test_download_resumes_where_it_was_cut_off_and_is_done_once(
    drawn: Path, tmp_path: Path, site: tuple[Any, str]
) -> None:
    parts = parts_of(site, packed(drawn, "train"))
    site[0].cuts = 1
    place = download.download(parts, tmp_path / "cache" / "set", pause_s=0)
    assert site[0].asked == [None, f"bytes={len(site[0].content) // 2}-", None]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["set"], "the archives are not kept"
    assert images.read_data(str(place), 32, tmp_path).train.pixels.shape == (12, 32, 32, 3)
    assert download.download(parts, place) == place
    assert len(site[0].asked) == 3


def test_wrong_checksum_and_truncated_zip_leave_nothing_that_counts(
    drawn: Path, tmp_path: Path, site: tuple[Any, str]
) -> None:
    parts, cache = parts_of(site, packed(drawn, "train")), tmp_path / "cache"
    site[0].content = site[0].content[:-1] + b"?"
    with pytest.raises(Problem, match=rf"set.zip: has the sha256 [0-9a-f]+; expected {parts['train'].sha256}"):
        download.download(parts, cache / "set", pause_s=0)
    assert not list(cache.iterdir())
    with pytest.raises(Problem, match=r"set-train.zip.part: is no complete zip file"):
        download.download(parts_of(site, packed(drawn, "train")[:-300]), cache / "set", pause_s=0)
    assert not (cache / "set").exists()


# Learning, and evictions


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    draw.draw(folder, QUICK[1])
    return folder


def weights_of(model: Path) -> dict[str, bytes]:
    """Every array in a `.keras` file, the optimizer's too."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(model) as packed, packed.open("model.weights.h5") as file, h5py.File(file) as weights:
        weights.visititems(
            lambda name, one: found.update({name: one[()].tobytes()}) if isinstance(one, h5py.Dataset) else None
        )
    return found


def evicted(stoker: Callable[..., str], command: str, moments: tuple[str, ...], folder: Path) -> None:
    """An evicted run, with a notice at first, when each of its attempts has reported."""
    job = {
        "name": "horses",
        "run": f"python {command} --output_dir ${{outputs}}",
        "source": str(HORSES.folder),
        "env": ENV,
    }
    (folder / "stoker.yaml").write_text(json.dumps(job))
    stoker("run", "-d")
    for attempt, moment in enumerate(moments, 1):
        deadline = time.monotonic() + 200
        while moment not in said(stoker, attempt):
            assert time.monotonic() < deadline, stoker("logs", "horses-1")
        stoker("evict", "horses-1", "--notice", "2s" if attempt == 1 else "0s")
    stoker("logs", "horses-1", "-f")
    facts = json.loads(stoker("show", "horses-1", "--json"))["run"]
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1 + len(moments))


def said(stoker: Callable[..., str], attempt: int) -> str:
    with suppress(AssertionError):  # there is no such attempt yet
        return stoker("logs", "horses-1", "--attempt", str(attempt))
    return ""


def check_log(text: str, evictions: int) -> list[int]:
    """Started once, resumed, ended once; the epochs it resumed in. An eviction without notice may lose what was written
    last, and so its line."""
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n"
    resumed = rf"(Training has resumed at: {moment}Resuming from Epoch Number: \d+\n)"
    times = f"{{{min(evictions, 1)},{evictions}}}"
    whole = rf"Training has begun at: {moment}{resumed}{times}Training has ended at: {moment}"
    assert re.fullmatch(whole, text), text
    return [int(epoch) for epoch in re.findall(r"Epoch Number: (\d+)", text)]


CALLBACK = ("train.py", 24, ("Epoch 3/", "Epoch "))
PLAIN = ("train_plain.py", 24, ('"epoch": 6', '"epoch": '))


@pytest.mark.parametrize(
    ("script", "epochs", "moments"),
    [
        pytest.param(*CALLBACK, id="callback", marks=pytest.mark.heavy),
        pytest.param(*PLAIN, id="plain", marks=pytest.mark.slow),
    ],
)
def test_evicted_twice_it_ends_as_an_undisturbed_training_does(
    tmp_path: Path, cache: Path, stoker: Callable[..., str], script: str, epochs: int, moments: tuple[str, ...]
) -> None:
    settings = [*QUICK, "--epochs", str(epochs), "--cache", str(cache)]
    alone = tmp_path / "alone"
    alone.mkdir()
    HORSES.program(script, *settings, folder=alone, **ENV)
    evicted(stoker, " ".join([script, *settings]), moments, tmp_path)
    landed = tmp_path / "outputs" / "horses-1"
    one, other = (folder / "model.keras" for folder in (landed, alone / "outputs"))
    resumed_in = check_log((landed / "log.txt").read_text(), 2)
    if script == "train.py":
        assert weights_of(one) == weights_of(other), "the very same bits"
        assert (landed / "result.json").read_text() == (alone / "outputs" / "result.json").read_text()
    else:  # Keras does not keep the state of its dropout, so the same training it is not
        assert weights_of(one).keys() == weights_of(other).keys()
        assert all(epoch % 5 == 1 for epoch in resumed_in), "from an epoch that it has saved"
    assert 1 <= resumed_in[0] <= resumed_in[-1] <= epochs
    check_log((alone / "outputs" / "log.txt").read_text(), 0)


@pytest.mark.slow
def test_the_small_form_tells_95_of_100_images_right(tmp_path: Path) -> None:
    HORSES.program("train.py", "--cache", tmp_path, folder=tmp_path, KERAS_BACKEND="torch")
    assert json.loads((tmp_path / "outputs" / "result.json").read_text())["val_accuracy"] >= 0.95


@pytest.mark.heavy
def test_the_plain_script_resumes_from_its_newest_whole_checkpoint_whatever_lies_beside_it(
    tmp_path: Path, cache: Path
) -> None:
    """A missing log, other people's files, and a truncated checkpoint have made such scripts start over, or never start
    again."""
    few = ("--data", "drawn:24", "--image_size", "32", "--batch_size", "24", "--cache", cache)
    HORSES.program("train_plain.py", *few, "--epochs", 5, folder=tmp_path, **ENV)
    place = tmp_path / "checkpoints"
    assert [path.name for path in place.glob("model*")] == ["model-5.keras"]
    (place / "log.txt").unlink()
    (place / ".gitkeep").touch()
    (place / "events.out.tfevents.1650000000.host").write_text("epoch 1650000000")
    (place / "model-40.keras").write_bytes((place / "model-5.keras").read_bytes()[:9000])
    said = HORSES.program("train_plain.py", *few, "--epochs", 6, folder=tmp_path, **ENV)
    assert "model-40.keras cannot be read" in said
    assert re.findall(r'"epoch": (\d+)', said) == ["6"]
    assert "Resuming from Epoch Number: 6" in (tmp_path / "outputs" / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
@pytest.mark.parametrize("script", ["train.py", "train_plain.py"])
def test_with_jax_or_tensorflow_instead_both_scripts_go_on_just_the_same(
    tmp_path: Path, cache: Path, script: str, backend: str
) -> None:
    python = ROOT / ".venv-tensorflow" / "bin" / "python" if backend == "tensorflow" else Path(sys.executable)
    assert python.exists(), "Keras on TensorFlow is not installed; try: make .venv-tensorflow/installed"
    for epochs in (5, 6):
        settings = [*QUICK, "--epochs", epochs, "--cache", cache]
        HORSES.program(script, *settings, folder=tmp_path, python=str(python), KERAS_BACKEND=backend)
    assert "Resuming from Epoch Number: 6" in (tmp_path / "outputs" / "log.txt").read_text()
    assert (tmp_path / "outputs" / "model.keras").exists()


def test_the_job_files_of_the_classifier_are_ones_that_stoker_can_run() -> None:
    small, plain, photos = (
        jobfile.read(HORSES.folder / name).job for name in ("stoker.yaml", "plain.yaml", "photos.yaml")
    )
    assert (small.name, plain.name, photos.name) == ("horses", "horses-plain", "horses-photos")
    assert "--image_size 300 --epochs 70" in photos.run
    assert "stoker" not in (HORSES.folder / "train_plain.py").read_text().replace("There is nothing of Stoker", "")
