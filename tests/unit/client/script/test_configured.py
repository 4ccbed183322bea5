"""What `stoker init` learns from configuration files, variables, options that a loop declares, and a README."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.script.starter import propose
from stoker.client.submit import jobfile
from stoker.model.job.job import Job

TRAIN = "import os, sys, argparse, torch\nloss.backward()\n"
NEWEST = "${checkpoint.newest}"


def job_of(folder: Path, **files: str) -> Job:
    """The job for these files: `a__b_py` is `a/b.py`."""
    for name, text in files.items():
        stem, _, ending = name.replace("__", "/").rpartition("_")
        path = folder / (f"{stem}.{ending}" if ending else stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "stoker.yaml").write_text(propose(folder).text)
    return jobfile.read(folder / "stoker.yaml").job


SOLVER = """
class Solver:
    def __init__(self, cfg):
        self.folder = cfg["save_folder"]
        torch.load(self.folder)
    def save(self, epoch):
        torch.save({}, os.path.join(self.folder, f"{epoch}.ckpt"))
"""
READS = "import yaml\ncfg = yaml.safe_load(open(sys.argv[1]))\n"


def test_the_file_that_the_command_names_says_where_a_script_saves(tmp_path: Path) -> None:
    config = "seed: 7\nroot: results/<seed>\nsave_folder: !ref <root>/save\nmodel: !new:torch.nn.Linear\n  in: 3\n"
    shown = "```\npython train.py hparams/small.yaml\n```\n"
    job = job_of(tmp_path, train_py=TRAIN + READS + SOLVER, hparams__small_yaml=config, README_md=shown)
    assert (job.run, job.checkpoints) == ("python train.py hparams/small.yaml", ("results",))


@pytest.mark.parametrize(("value", "wanted"), [("False", "True"), ("null", NEWEST), ("''", NEWEST)])
def test_a_key_that_says_not_to_resume_is_overridden_where_pairs_are_taken(
    value: str, wanted: str, tmp_path: Path
) -> None:
    code = TRAIN + "cfg = load('c.yaml')\ncfg |= dict(one.split('=', 1) for one in sys.argv[1:])\n" + SOLVER
    config = f"save_folder: exps/a\nresume_from_checkpoint: {value}\n"
    job = job_of(tmp_path, train_py=code, c_yaml=config)
    assert (job.resume, job.checkpoints) == (f"resume_from_checkpoint={wanted}", ("exps",))


def test_a_key_is_not_overridden_where_no_pairs_are_taken(tmp_path: Path) -> None:
    code = TRAIN + "cfg = load('c.yaml')\n" + SOLVER
    assert job_of(tmp_path, train_py=code, c_yaml="save_folder: a\nresume: null\n").resume is None


SAVES = "torch.save({}, os.path.join(args.DIR, 'last.pt'))\n"


@pytest.mark.parametrize("read", ["os.environ['SM_MODEL_DIR']", "os.environ.get('SM_MODEL_DIR', '/opt/ml/model')"])
def test_a_variable_that_names_where_to_save_is_set(read: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, train_py=TRAIN + f"torch.save({{}}, {read} + '/last.pt')\n")
    assert (dict(job.env), job.outputs, job.checkpoints) == ({"SM_MODEL_DIR": "outputs"}, "outputs", ("outputs",))


@pytest.mark.parametrize("read", ["os.environ.get('CKPT_DIR', 'ckpt')", "os.environ['HF_TOKEN']"])
def test_a_variable_with_a_path_of_its_own_or_another_meaning_is_not_set(read: str, tmp_path: Path) -> None:
    assert not job_of(tmp_path, train_py=TRAIN + f"torch.save({{}}, {read} + '/model.pt')\n").env


def test_an_absolute_folder_that_an_option_names_is_replaced(tmp_path: Path) -> None:
    option = "p = argparse.ArgumentParser()\np.add_argument('--checkpoint-path', default='/opt/ml/checkpoints')\n"
    saves = "args = p.parse_args()\ntorch.save({}, args.checkpoint_path + '/checkpoint.pth')\n"
    assert job_of(tmp_path, train_py=TRAIN + option + saves).run == "python train.py --checkpoint-path ${checkpoints}"


DICT = "defaults = dict(lr=1e-4, resume_checkpoint='', out_dir='o')\nfor k, v in defaults.items():\n"
FIELDS = (
    "from dataclasses import dataclass, fields\n@dataclass\nclass Config:\n    lr: float = 1e-4\n"
    "    resume_checkpoint: str = ''\n    out_dir: str = 'o'\nfor k in fields(Config):\n"
)


@pytest.mark.parametrize("declared", [DICT, FIELDS])
def test_options_that_a_loop_declares_are_found(declared: str, tmp_path: Path) -> None:
    loop = f"p = argparse.ArgumentParser()\n{declared}    p.add_argument(f'--{{k}}')\nargs = p.parse_args()\n"
    job = job_of(tmp_path, train_py=TRAIN + loop + SAVES.replace("DIR", "out_dir"))
    assert job.run == "python train.py --out_dir ${outputs}"
    assert job.resume == f"--resume_checkpoint {NEWEST}"


def test_the_readme_may_give_the_short_name_of_an_option(tmp_path: Path) -> None:
    option = "p = argparse.ArgumentParser()\np.add_argument('-m', '--model', required=True)\n"
    shown = "python train.py -c base.json -m small\n"
    assert job_of(tmp_path, train_py=TRAIN + option, README_md=shown).run == "python train.py -m small"


def test_the_readme_gives_the_arguments_without_a_name(tmp_path: Path) -> None:
    options = "p = argparse.ArgumentParser()\np.add_argument('config')\np.add_argument('--work-dir')\n"
    shown = "python train.py configs/a.py --work-dir x\n"
    job = job_of(tmp_path, train_py=TRAIN + options, configs__a_py="", README_md=shown)
    assert job.run == "python train.py --work-dir ${outputs} configs/a.py"


CONFIG = "p = argparse.ArgumentParser()\np.add_argument('--config')\np.add_argument('--rate', default='0.1')\n"


def test_a_file_that_the_readme_gives_to_an_option_without_a_default_is_given(tmp_path: Path) -> None:
    shown = "python train.py --config configs/a.txt --rate 0.5 --name x --resume configs/a.txt\n"
    files = {"train_py": TRAIN + CONFIG, "configs__a_txt": "basedir = logs\n"}
    assert job_of(tmp_path / "a", **files, README_md=shown).run == "python train.py --config configs/a.txt"
    gone = shown.replace("a.txt", "b.txt")
    assert job_of(tmp_path / "b", **files, README_md=gone).run == "python train.py"
    evaluates = shown.replace("--name x", "--render_only")
    assert job_of(tmp_path / "c", **files, README_md=evaluates).run == "python train.py"


def test_a_file_that_the_readme_gives_as_a_pair_is_given(tmp_path: Path) -> None:
    code = TRAIN + "given = dict(word.split('=', 1) for word in sys.argv[1:])\n"
    shown = "Run\n```\npython train.py config=train.conf num_trees=9\n```\n"
    assert (
        job_of(tmp_path, train_py=code, train_conf="a = 1", README_md=shown).run == "python train.py config=train.conf"
    )


def test_a_file_that_a_shell_script_gives_to_an_option_of_a_library_is_given(tmp_path: Path) -> None:
    starts = '#!/bin/bash\npython train.py --deepspeed --deepspeed_config ds.json "$@"\n'
    job = job_of(tmp_path, train_py=TRAIN + CONFIG, ds_json="{}", run_sh=starts)
    assert job.run == "python train.py --deepspeed_config ds.json"


def test_a_makefile_gives_the_arguments_without_a_name(tmp_path: Path) -> None:
    code = (
        "import click, joblib\nfrom sklearn.svm import SVC\n@click.command()\n@click.argument('data')\n"
        "@click.argument('model')\ndef main(data, model):\n    joblib.dump(SVC().fit(data), model)\nmain()\n"
    )
    recipe = "PY = python3\n\ntrain:\n\t@$(PY) -m src.models.train_model data/a.csv models/m.joblib\n"
    job = job_of(tmp_path, src__models__train_model_py=code, data__a_csv="1", Makefile_=recipe)
    assert job.run == "python src/models/train_model.py data/a.csv models/m.joblib"
    assert job.checkpoints == ("models",)


STAGES = "stages:\n  train:\n    cmd: python src/train.py data/features model.pkl\n    deps:\n      - data/features\n"
COUNTS = """import pickle, sys, sklearn
if len(sys.argv) != 3:
    sys.exit(1)
output = sys.argv[2]
with open(output, "wb") as file:
    pickle.dump(model.fit(sys.argv[1]), file)
"""


@pytest.mark.parametrize("name", ["dvc_yaml", "justfile_", "README_md"])
def test_words_that_a_script_counts_are_given_by_whatever_starts_it(name: str, tmp_path: Path) -> None:
    told = {"dvc_yaml": STAGES, "justfile_": "train:\n    python src/train.py data/features model.pkl\n"}
    shown = told.get(name, "```\n> python src/train.py data/features model.pkl\n```\n")
    job = job_of(tmp_path, src__train_py=COUNTS, **{name: shown})
    assert (job.run, job.checkpoints) == ("python src/train.py data/features model.pkl", ("model.pkl",))


def test_a_shell_script_further_below_is_found_and_the_one_in_the_readme_wins(tmp_path: Path) -> None:
    option = "p = argparse.ArgumentParser()\np.add_argument('--model', required=True)\n"
    starts = "python -u run.py \\\n  --model x\n"
    files = {"run_py": TRAIN + option, "scripts__a__ETTh1_sh": starts, "scripts__b__ETTm1_sh": starts}
    assert job_of(tmp_path / "a", **files).run == "bash scripts/a/ETTh1.sh"
    shown = "```\nbash ./scripts/b/ETTm1.sh\n```\n"
    assert job_of(tmp_path / "b", **files, README_md=shown).run == "bash scripts/b/ETTm1.sh"


def test_what_nothing_gives_to_a_script_is_reported(tmp_path: Path) -> None:
    option = "p = argparse.ArgumentParser()\np.add_argument('--model', required=True)\np.add_argument('where')\n"
    (tmp_path / "train.py").write_text(TRAIN + option)
    told = propose(tmp_path).advice[0]
    assert [name for name in ("--model", "where", "--config") if name in told] == ["--model", "where"]


DOCOPT = '''"""Train.

Usage:
  train.py [--save-to=<file>] [--load=<file>]

Options:
  -v --verbose            say more
  --save-to=<file>        model save path [default: model.bin]
  --load=<file>           resume from this model
"""
import torch
from docopt import docopt
args = docopt(__doc__)
torch.load(args["--load"])
loss.backward()
torch.save(model, args["--save-to"])
'''


def test_options_that_are_a_text_are_known(tmp_path: Path) -> None:
    job = job_of(tmp_path, train_py=DOCOPT)
    assert (job.run, job.checkpoints, job.resume) == ("python train.py", ("model.bin",), f"--load {NEWEST}")


CLASS = """import torch
class Trainer:
    def __init__(self, lr=0.1): pass
    def evaluate(self): pass
    def fit(self, ckpt_path=None):
        torch.load(ckpt_path)
        loss.backward()
        torch.save(self, "last.pt")
"""


@pytest.mark.parametrize(
    ("starts", "run"),
    [
        ("import fire\nfire.Fire(Trainer)\n", "python train.py fit"),
        ("from jsonargparse import auto_cli\nauto_cli(Trainer)\n", "python train.py fit"),
        ("import fire\ndef train():\n    pass\ndef show():\n    pass\nfire.Fire()\n", "python train.py train"),
        ("import fire\ndef f():\n    pass\nfire.Fire({'train': f, 'show': f})\n", "python train.py train"),
        ("import fire\ndef main(epochs=3):\n    pass\nfire.Fire(main)\n", "python train.py"),
    ],
)
def test_the_command_that_trains_is_found_in_a_class_a_module_or_a_dictionary(
    starts: str, run: str, tmp_path: Path
) -> None:
    assert job_of(tmp_path, train_py=CLASS + starts).run == run


def test_a_shell_script_that_sets_up_a_machine_is_not_what_a_run_starts(tmp_path: Path) -> None:
    starts = "curl -LsSf https://example.com/uv.sh | sh\nsource .venv/bin/activate\npython -m scripts.base_train\n"
    job = job_of(tmp_path / "a", scripts__base_train_py=TRAIN + "import lib\n", lib_py="", speedrun_sh=starts)
    assert job.run == "python -m scripts.base_train"
    plain = job_of(tmp_path / "b", scripts__base_train_py=TRAIN, speedrun_sh="python scripts/base_train.py --depth 4\n")
    assert plain.run == "bash speedrun.sh"


BASE = """
def base():
    if os.environ.get("CHAT_BASE_DIR"):
        folder = os.environ.get("CHAT_BASE_DIR")
    else:
        folder = os.path.join(os.path.expanduser("~"), ".cache", "chat")
    return folder
"""


def test_a_variable_that_moves_what_is_saved_outside_is_set(tmp_path: Path) -> None:
    saves = "torch.save({}, os.path.join(base(), 'last.pt'))\n"
    job = job_of(tmp_path / "a", train_py=TRAIN + BASE + saves)
    assert (dict(job.env), job.checkpoints) == ({"CHAT_BASE_DIR": "outputs"}, ("outputs",))
    assert not job_of(tmp_path / "b", train_py=TRAIN + BASE + "torch.save({}, '/models/m.pt')\n").env


HYDRA = "import hydra\n@hydra.main({0}config_path='conf', config_name='train')\ndef main(cfg):\n    {1}\nmain()\n"
PATHS = "root: ${oc.env:PROJECT_ROOT}\nlogs: ${paths.root}/logs\nout: ${hydra:runtime.output_dir}\n"
OWN_RUN = "run:\n  dir: ${paths.logs}/train/${now:%Y-%m-%d}\n"
KEEPS = "checkpoint:\n  _target_: lightning.pytorch.callbacks.ModelCheckpoint\n  dirpath: ${paths.out}/checkpoints\n"


def test_the_files_that_hydra_puts_together_say_where_a_script_saves(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        train_py=TRAIN + HYDRA.format("version_base='1.3', ", "fit(cfg)"),
        conf__train_yaml="defaults:\n  - _self_\n  - paths: here\n  - callbacks: default\n  - hydra: own\n",
        conf__paths__here_yaml=PATHS,
        conf__callbacks__default_yaml=KEEPS,
        conf__hydra__own_yaml=OWN_RUN,
    )
    assert (job.outputs, job.checkpoints) == ("logs", ("logs/train/*/checkpoints",))


@pytest.mark.parametrize(("version", "kept"), [("", "outputs"), ("version_base=None, ", "model.pt")])
def test_up_to_a_version_hydra_moves_a_script_to_a_folder_of_its_own(version: str, kept: str, tmp_path: Path) -> None:
    code = TRAIN + HYDRA.format(version, "torch.save({}, 'model.pt')")
    assert job_of(tmp_path, train_py=code, conf__train_yaml="lr: 0.1\n").checkpoints == (kept,)


def test_options_of_absl_that_are_marked_are_required(tmp_path: Path) -> None:
    flags = (
        "from absl import flags\nflags.DEFINE_string('config', None, '')\nflags.mark_flags_as_required(['config'])\n"
    )
    shown = "`python train.py --config=a.py --workdir=/tmp/x`\n"
    assert job_of(tmp_path, train_py=TRAIN + flags, README_md=shown).run == "python train.py --config=a.py"


def test_a_script_in_a_folder_that_imports_from_the_root_is_started_as_a_module(tmp_path: Path) -> None:
    job = job_of(tmp_path, tools__train_py=TRAIN + "from lib import model\n", lib____init___py="", lib__model_py="")
    assert job.run == "python -m tools.train"


def test_a_script_that_finds_the_root_or_imports_from_its_own_folder_is_started_by_its_path(tmp_path: Path) -> None:
    for name, code in {"a": "sys.path.insert(0, '..')\n", "b": "import near\n"}.items():
        code = TRAIN + code + "from lib import model\n"
        job = job_of(tmp_path / name, tools__train_py=code, lib__model_py="", tools__near_py="")
        assert job.run == "python tools/train.py"


def test_what_is_saved_outside_is_reported_without_a_framework(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import pickle\npickle.dump({}, open('/data/models/m.pkl', 'wb'))\n")
    assert "saves to `/data/models/m.pkl`" in propose(tmp_path).advice[0]
