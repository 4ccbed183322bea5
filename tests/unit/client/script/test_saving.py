"""What `stoker init` keeps of a script: one script for each call that libraries save with."""

# ruff: noqa: E501 - a script and what is kept of it on one line

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from stoker.client.script.starter import propose

SB3 = "from stable_baselines3 import PPO\nmodel = PPO('MlpPolicy', 'CartPole-v1')\nmodel.learn(1000)\n"
KEPT: dict[str, tuple[str, list[str]]] = {
    "sb3": (SB3 + "model.save('ppo_cartpole')", ["ppo_cartpole.zip"]),
    "sb3 callback": (
        SB3 + "from stable_baselines3.common.callbacks import CheckpointCallback\n"
        "CheckpointCallback(save_freq=9, save_path='./logs/', name_prefix='rl')\nmodel.save_replay_buffer('replay')",
        ["logs", "replay.pkl"],
    ),
    "skorch": (
        "from skorch.callbacks import Checkpoint\ncp = Checkpoint(dirname='exp1')\nnet.fit(X)\nnet.save_params(f_params='m.pkl')",
        ["exp1", "m.pkl"],
    ),
    "two names": (
        "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--name', default='x')\nfor name in names:\n    torch.save(m, 'net_%s.pth' % name)",
        ["net_*.pth"],
    ),
    "dotdict": (
        "import os, torch\nargs = dotdict({'checkpoint': './temp/'})\ndef keep(folder='checkpoint'):\n    torch.save(m, os.path.join(folder, 'last.pth.tar'))\nkeep(folder=args.checkpoint)",
        ["temp"],
    ),
    "named after its data": (
        "import os, torch\nFILE = 'data/shakespeare.txt'\ntorch.save(m, os.path.splitext(os.path.basename(FILE))[0] + '.pt')",
        ["shakespeare.pt"],
    ),
    "sb3 best": (SB3 + "EvalCallback(None, best_model_save_path='./best/')", ["best"]),
    "onnx": ("import torch\ntorch.onnx.export(torch.nn.Linear(1, 1), torch.zeros(1), 'model.onnx')", ["model.onnx"]),
    "savetxt": ("import numpy as np\nnp.savetxt('weights.csv', [1.0], delimiter=',')", ["weights.csv"]),
    "tofile": ("import numpy as np\nnp.zeros(3).tofile('w.raw')", ["w.raw"]),
    "shelve": ("import shelve\nwith shelve.open('state') as db:\n    db['epoch'] = 1", ["state", "state.*"]),
    "pickle": ("import pickle\nwith open('model.sav', 'wb') as f:\n    pickle.dump({}, f)", ["model.sav"]),
    "cloudpickle": ("import cloudpickle\ncloudpickle.dump({}, open('m.cloudpkl', 'wb'))", ["m.cloudpkl"]),
    "joblib": ("from joblib import dump\ndump({}, 'clf.joblib')", ["clf.joblib"]),
    "tf manager": (
        "import tensorflow as tf\nmanager = tf.train.CheckpointManager(tf.train.Checkpoint(), './tf_ckpts', 3)",
        ["tf_ckpts"],
    ),
    "tf checkpoint": (
        "import tensorflow as tf, os\ntf.train.Checkpoint().save(file_prefix=os.path.join('./trained_ckpt', 'ckpt'))",
        ["trained_ckpt"],
    ),
    "orbax": ("import os\nimport orbax.checkpoint as ocp\nocp.CheckpointManager(os.path.abspath('ckpts'))", ["ckpts"]),
    "accelerate": ("from accelerate import Accelerator\nAccelerator().save_state('my_state')", ["my_state"]),
    "accelerate project": (
        "from accelerate import Accelerator\na = Accelerator(project_dir='proj')\na.save_state()",
        ["proj"],
    ),
    "trainer": ("from transformers import Trainer\nTrainer(output_dir='out2').train()", ["out2"]),
    "trl": ("from trl import SFTConfig\nargs = SFTConfig(output_dir='sft-out')", ["sft-out"]),
    "backup": ("import keras\nkeras.callbacks.BackupAndRestore('backup')", ["backup"]),
    "xgboost": ("import xgboost as xgb\nxgb.train({}, None).save_model('0001.model')", ["0001.model"]),
    "lightgbm": ("import lightgbm as lgb\nbooster = lgb.train({}, None)\nbooster.save_model('model.txt')", ["model.txt"]),
    "catboost fit": (
        "from catboost import CatBoost\nm = CatBoost(train_dir='info')\nm.fit(x, save_snapshot=True)",
        ["info"],
    ),
    "catboost": (
        "from catboost import CatBoostClassifier\nm = CatBoostClassifier(save_snapshot=True)\nm.save_model('m.cbm')",
        ["catboost_info", "m.cbm"],
    ),
    "safetensors": ("from safetensors.torch import save_file\nsave_file({}, 'm.safetensors')", ["m.safetensors"]),
    "safetensors model": ("from safetensors.torch import save_model\nsave_model(None, 'm.safetensors')", ["m.safetensors"]),
    "optuna": ("import optuna\noptuna.create_study(storage='sqlite:///example.db', load_if_exists=True)", ["example.db"]),
    "optuna journal": (
        "import optuna\ns = optuna.storages.JournalStorage(optuna.storages.JournalFileStorage('journal.log'))",
        ["journal.log"],
    ),
    "fabric": ("from lightning.fabric import Fabric\nFabric().save('last.ckpt', {})", ["last.ckpt"]),
    "dcp": ("import torch.distributed.checkpoint as dcp\ndcp.save({}, checkpoint_id='dcp_out')", ["dcp_out"]),
    "deepspeed": ("engine = None\nengine.save_checkpoint('ds_ckpt', tag='a')", ["ds_ckpt"]),
    "ignite": ("from ignite.handlers import DiskSaver\nDiskSaver('ig_models', create_dir=True)", ["ig_models"]),
    "mmengine": ("from mmengine.runner import Runner\nRunner(work_dir='work_dirs/exp').train()", ["work_dirs/exp"]),
    "ultralytics": ("from ultralytics import YOLO\nYOLO('n.pt').train(data='coco8.yaml', epochs=3)", ["runs"]),
    "equinox": ("import equinox as eqx\neqx.tree_serialise_leaves('model.eqx', None)", ["model.eqx"]),
    "fastai": ("from fastai.vision.all import *\nlearn.save('stage-1')\nlearn.export('model.pkl')", ["models", "model.pkl"]),
    "flax": ("open('params.msgpack', 'wb').write(b'')", ["params.msgpack"]),
    "any ending": ("import torch\ntorch.save({}, 'ppo.cleanrl_model')", ["ppo.cleanrl_model"]),
    "own ending": ("import os, pyro\nif os.path.exists('p.save'):\n    store.load('p.save')\nstore.save('p.save')", ["p.save"]),
    "own method": (
        "import torch\nclass M:\n    def save(self, label):\n        torch.save({}, f'nets/{label}.pth')\nM().save('latest')",
        ["nets"],
    ),
    "own name": (
        "import os, torch\ndef a():\n    path = 'x.pth'\n    return os.path.join('saved', path)\n"
        "def b(**k):\n    path = k.pop('path', a())\n    torch.save({}, path)",
        ["saved"],
    ),
    "spacy": ("import spacy\nspacy.blank('en').to_disk('model_out')", ["model_out"]),
}  # fmt: skip
NOT_KEPT = [
    "import json\nprint(json.dumps({}))",
    "text = 'a'.replace('model.pt', 'b')",
    "data = open('model.bin', 'rb').read()",
    "import numpy as np\nnp.load('w.npy')",
    "import torch\ntorch.load('model.pt')",
    "import logging\nlogging.FileHandler('train.log')",
    "class Config:\n    pass\nConfig(lr=1)",
    "df = None\ndf.export(1, 2)",
]


def kept(folder: Path, script: str) -> list[str]:
    (folder / "train.py").write_text(f"{script}\nfor epoch in range(10):\n    pass\n", encoding="utf-8")
    job = yaml.safe_load(propose(folder).text)
    told = job["checkpoints"]
    return [told] if isinstance(told, str) else told


@pytest.mark.parametrize("name", KEPT)
def test_what_a_script_saves_is_kept(name: str, tmp_path: Path) -> None:
    script, wanted = KEPT[name]
    assert sorted(kept(tmp_path, script)) == sorted(wanted)


@pytest.mark.parametrize("script", NOT_KEPT)
def test_what_a_script_does_not_save_is_not_kept(script: str, tmp_path: Path) -> None:
    assert kept(tmp_path, script) == ["checkpoints"]


def proposed(folder: Path, path: str, script: str, *others: str) -> tuple[str, str, object]:
    for name in (*others, path):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(script if name == path else "{}", encoding="utf-8")
    job = yaml.safe_load(propose(folder).text)
    return job["run"], job["outputs"], job["checkpoints"]


TRAIN = "import torch\nloss.backward()\n"


def test_a_script_that_opens_files_of_its_own_folder_is_started_there(tmp_path: Path) -> None:
    script = TRAIN + "open('config.json')\ntorch.save({}, 'model.pt')"
    found = proposed(tmp_path, "sub/train.py", script, "sub/config.json")
    assert found == ("cd sub && python train.py", "sub/outputs", "sub/model.pt")


@pytest.mark.parametrize("opened", ["open(os.path.join(os.path.dirname(__file__), 'config.json'))", "open('data.csv')"])
def test_a_script_that_finds_its_files_by_itself_is_started_in_the_root(opened: str, tmp_path: Path) -> None:
    script = TRAIN + f"import os\n{opened}\ntorch.save({{}}, 'model.pt')"
    found = proposed(tmp_path, "sub/train.py", script, "sub/config.json", "data.csv")
    assert found == ("python sub/train.py", "outputs", "model.pt")


def test_the_folder_of_the_script_is_not_taken_for_its_outputs(tmp_path: Path) -> None:
    script = TRAIN + "import os\ntorch.save({}, os.path.join(os.path.dirname(__file__), 'ckpt', 'model.pt'))"
    assert proposed(tmp_path, "sub/train.py", script) == ("python sub/train.py", "outputs", "sub/ckpt")


def test_what_a_notebook_saves_above_its_folder_is_kept(tmp_path: Path) -> None:
    code = TRAIN + "torch.save({}, '../models/last.pt')\ntorch.load('../models/last.pt')"
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": code,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    _, _, checkpoints = proposed(tmp_path, "notebooks/train.ipynb", notebook)
    assert checkpoints == "models"


def test_what_a_script_saves_above_the_root_is_said_not_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "torch.save({}, '../models/last.pt')", encoding="utf-8")
    told = propose(tmp_path).advice
    assert "train.py saves to `../models/last.pt`, which is outside its working directory" in told[0]


def test_what_is_saved_after_a_change_of_folder_is_kept_there(tmp_path: Path) -> None:
    folder = "os.makedirs('stage/a', exist_ok=True)\nos.chdir('stage/a')\n"
    script = f"import os, pickle\n{folder}pickle.dump({{}}, open('state.pickle', 'wb'))"
    assert kept(tmp_path, script) == ["stage/a"]


def test_a_file_that_is_renamed_when_it_is_finished_is_kept_under_its_last_name_only(tmp_path: Path) -> None:
    script = "import json, os\njson.dump({}, open('state.json.tmp', 'w'))\nos.replace('state.json.tmp', 'state.json')"
    assert kept(tmp_path, script) == ["state.json"]


def test_results_that_joblib_remembers_are_kept(tmp_path: Path) -> None:
    script = "from joblib import Memory\nimport sklearn\nmemory = Memory('cachedir', verbose=0)\nmodel.fit(1)"
    assert kept(tmp_path, script) == ["cachedir"]


def test_a_script_that_reads_its_standard_input_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\ntext = sys.stdin.read()\nprint(text)\n", encoding="utf-8")
    assert "`run: python train.py < FILE`" in propose(tmp_path).advice[0]


def test_a_shell_script_that_gives_what_the_script_requires_is_started_instead_of_it(tmp_path: Path) -> None:
    flag = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n"
    (tmp_path / "train.sh").write_text("python prepare.py\npython train.py --data x\npython evaluate.py\n")
    for name in ("prepare", "evaluate"):
        (tmp_path / f"{name}.py").write_text("print(1)")
    assert proposed(tmp_path, "train.py", TRAIN + flag)[0] == "bash train.sh"
    assert proposed(tmp_path, "train.py", TRAIN + flag.replace(", required=True", ""))[0].startswith("python train.py")
