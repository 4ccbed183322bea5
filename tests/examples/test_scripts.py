"""Scripts after the shape of public ones, as they are: what `stoker init` proposes for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.client import jobfile
from stoker.client.starter import propose

SCRIPTS = Path(__file__).with_name("scripts")


class Shape(NamedTuple):
    run: str
    outputs: str
    checkpoints: tuple[str, ...]
    resume: str | None = None


SHAPES = {
    "bash_wrapper": Shape("bash train.sh", "fitted", ("checkpoints",)),
    "constants": Shape("python experiment.py", "saved", ("saved",)),
    "gan": Shape("python dcgan.py --outf ${outputs}", "outputs", ("outputs",)),
    "huggingface": Shape("python run_clm.py --output_dir ${outputs}", "outputs", ("outputs",)),
    "hydra_config": Shape("python train.py", "outputs", ("ckpt_hydra",)),
    "imagenet": Shape(
        "python main.py", "outputs", ("checkpoint.pth.tar", "model_best.pth.tar"), "--resume ${checkpoint.newest}"
    ),
    "keras_checkpoint": Shape("python train.py", "training_1", ("training_1",)),
    "lightning_cli": Shape("python train.py", "outputs", ("lightning_logs",), "--ckpt_path ${checkpoint.newest}"),
    "many_scripts": Shape(
        "python finetune_bert.py --checkpoint_dir ${checkpoints}", "outputs", ("checkpoints",), "--resume"
    ),
    "mnist": Shape("python main.py", "outputs", ("mnist_cnn.pt",)),
    "nanogpt": Shape("python train.py", "out", ("out",), "--init_from=resume"),
    "notebook_like": Shape("python analysis.py", "outputs", ("perceptron.pkl",)),
    "optuna_sqlite": Shape("python tune.py", "outputs", ("study.db",)),
    "package": Shape("python -m mypkg.train --checkpoint-dir ${checkpoints}", "outputs", ("checkpoints",)),
    "sklearn_joblib": Shape("python fit_forest.py", "models", ("checkpoints",)),
    "vae": Shape("python main.py", "results", ("results",)),
    "word_language_model": Shape("python main.py --data ${data.data}", "outputs", ("model.pt",)),
    "writes_to_cwd": Shape("python classify.py", "outputs", ("epoch_*.npz",)),
    "xgboost_callback": Shape("python train_xgb.py", "xgb_models", ("xgb_models", "model.json")),
}


def test_every_folder_of_scripts_is_tried():
    assert {path.name for path in SCRIPTS.iterdir() if path.is_dir()} == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_init_finds_the_script_what_it_keeps_and_how_it_resumes(name: str, tmp_path: Path):
    place = tmp_path / name
    shutil.copytree(SCRIPTS / name, place)
    found = propose(place)
    (place / "stoker.yaml").write_text(found.text)
    job = jobfile.read(place / "stoker.yaml").job
    assert Shape(job.run, job.outputs, job.checkpoints, job.resume) == SHAPES[name]
    assert not found.others
