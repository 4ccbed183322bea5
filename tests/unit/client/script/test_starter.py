from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.client.script.starter import propose, starter
from stoker.client.submit import jobfile
from stoker.errors import BadInput
from stoker.model.job.job import Job

JobFor = Callable[..., Job]


@pytest.fixture
def job_for(tmp_path: Path) -> JobFor:
    """The job in the starter for a folder with these files."""

    def job_for(folder: str = "My Project", **files: str) -> Job:
        place = tmp_path / folder
        place.mkdir()
        for name, text in files.items():
            path = place / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read(place)

    return job_for


def read(place: Path) -> Job:
    path = place / "stoker.yaml"
    path.write_text(starter(place), encoding="utf-8")
    return jobfile.read(path).job


FLAGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--input_dir", default="images")
parser.add_argument("-o", "--output-dir", default="model")
parser.add_argument("--checkpoint_dir")
parser.add_argument("--epochs", type=int, default=25)
parser.add_argument("--model_name", required=True)
"""


def test_an_empty_folder_gets_a_job_to_fill_in(job_for: JobFor) -> None:
    job = job_for()
    assert (job.name, job.run) == ("my-project", "python train.py")


def test_the_script_is_found_by_its_name_and_then_by_what_it_does(job_for: JobFor) -> None:
    assert job_for("a", utils_py="", train_py="", main_py="").run == "python train.py"
    assert job_for("b", utils_py="x = 1", experiment_py="if __name__ == '__main__': pass").run == "python experiment.py"
    assert job_for("c", data_py="", net_py="import torch").run == "python net.py"
    assert job_for("d", setup_py="if __name__ == '__main__': pass", train_bert_py="").run == "python train_bert.py"


def test_a_script_that_is_named_is_taken(tmp_path: Path) -> None:
    for name in ("train.py", "evaluate.py", "src/fit.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(FLAGS)
    assert "run: python evaluate.py --output-dir ${outputs}" in starter(tmp_path, Path("evaluate.py"))
    assert "run: python src/fit.py --output-dir" in starter(tmp_path, Path("./src/../src/fit.py"))
    assert starter(tmp_path, tmp_path / "train.py") == starter(tmp_path)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("gone.py", "file `gone.py` not found"),
        ("src", "file `src` not found"),
        ("../other.py", "`../other.py` is not in this folder"),
        ("train.txt", "`train.txt` cannot be read as Python"),
    ],
)
def test_a_script_that_cannot_be_meant_is_refused(tmp_path: Path, named: str, said: str) -> None:
    folder = tmp_path / "code"
    (folder / "src").mkdir(parents=True)
    (tmp_path / "other.py").write_text("x = 1")
    (folder / "train.txt").write_text("exec python train.py --lr 0.1")
    with pytest.raises(BadInput, match=re.escape(said)):
        starter(folder, Path(named))


def test_flags_for_folders_are_filled_in(job_for: JobFor) -> None:
    job = job_for(train_py=FLAGS, images__ant_txt="x")
    assert job.run == (
        "python train.py --input_dir ${data.input} --output-dir ${outputs} --checkpoint_dir ${checkpoints}"
    )
    assert job.data["input"].path == "images"


@pytest.mark.parametrize(
    ("declared", "saves", "given"),
    [
        ('"--out", default="model.joblib"', "joblib.dump(m, a.out)", "--out ${outputs}/model.joblib"),
        ('"--output", default="best/m.pkl"', "joblib.dump(m, a.output)", "--output ${outputs}/m.pkl"),
        ('"--output", required=True', "joblib.dump(m, a.output)", "--output ${outputs}/model.joblib"),
        ('"-o", dest="out", default="m.joblib"', "joblib.dump(m, a.out)", "-o ${outputs}/m.joblib"),
        ('"output"', "joblib.dump(m, a.output)", "${outputs}/model.joblib"),
        ('"--output", required=True', "pickle.dump(m, open(a.output, 'wb'))", "--output ${outputs}/model.joblib"),
        ('"--output", required=True', "joblib.dump(m, f'{a.output}/m.joblib')", "--output ${outputs}"),
        ('"--output", required=True', "m.save_pretrained(a.output)", "--output ${outputs}"),
        ('"--out-dir", default="v1.0"', "joblib.dump(m, a.out_dir + '/m.joblib')", "--out-dir ${outputs}"),
        ('"--out", default="./out"', "joblib.dump(m, a.out + '/m.joblib')", "--out ${outputs}"),
    ],
)
def test_a_flag_that_names_a_file_is_given_one_in_the_outputs(
    job_for: JobFor, declared: str, saves: str, given: str
) -> None:
    code = f"import argparse, joblib, pickle\np = argparse.ArgumentParser()\np.add_argument({declared})\n"
    assert job_for(train_py=f"{code}a = p.parse_args()\n{saves}\n").run == f"python train.py {given}"


@pytest.mark.parametrize("declared", ['"-w", dest="weights"', '"-w"', '"--weights", "-w"'])
def test_what_a_flag_of_one_letter_stands_for_is_known(job_for: JobFor, declared: str) -> None:
    code = f"import argparse, numpy\np = argparse.ArgumentParser()\np.add_argument({declared}, default='w.npz')\n"
    name = "weights" if "weights" in declared else "w"
    assert job_for(train_py=f"{code}a = p.parse_args()\nnumpy.savez(a.{name}, w=1)\n").checkpoints == ("w.npz",)


def test_a_letter_of_click_is_known_by_its_parameter(job_for: JobFor) -> None:
    code = "import click, joblib\n@click.command()\n@click.option('-o', 'output', required=True)\n"
    job = job_for(
        train_py=f"{code}def main(output):\n    joblib.dump(1, output)\nif __name__ == '__main__':\n    main()\n"
    )
    assert job.run == "python train.py -o ${outputs}/model.joblib"


def test_data_that_is_not_there_is_left_to_the_script(job_for: JobFor) -> None:
    job = job_for(train_py=FLAGS)
    assert not job.data
    assert "input_dir" not in job.run


def test_other_flags_are_reported_in_a_comment(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FLAGS)
    text = starter(tmp_path)
    assert "# it also accepts --input_dir images, --epochs 25" in text
    assert "# the script also requires: --model_name" in text


@pytest.mark.parametrize(
    ("code", "outputs", "checkpoints"),
    [
        ('OUTPUT_DIR = "results"', "results", "checkpoints"),
        ('torch.save(model, "results/model.pt")', "results", "checkpoints"),
        ('torch.save(model, "ckpts/last.pt")', "outputs", "ckpts"),
        ('TrainingArguments(output_dir="bert-out")', "bert-out", "bert-out"),
        ('os.makedirs("checkpoints/a", exist_ok=True)\nPath("artifacts").mkdir()', "artifacts", "checkpoints"),
        ('torch.save(model, "/tmp/model.pt")\nopen("../x/y", "w")', "outputs", "checkpoints"),
        ('torch.save(model, f"{d}/model.pt")\nsave("a: b/c")\nsave("C:/x/y")', "outputs", "checkpoints"),
    ],
)
def test_folders_the_script_writes_to_are_downloaded(
    job_for: JobFor, code: str, outputs: str, checkpoints: str
) -> None:
    job = job_for(train_py=code)
    assert (job.outputs, job.checkpoints) == (outputs, (checkpoints,))


def test_a_model_written_beside_the_script_is_kept_and_so_downloaded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import torch\ntorch.save(net, "model.pt")')
    assert read(tmp_path).checkpoints == ("model.pt",)


@pytest.mark.parametrize(
    ("code", "checkpoints"),
    [
        ('D = "a"\ntorch.save(x, os.path.join(D, "b", "last.pt"))', ("a/b",)),
        ('torch.save(x, f"run_{epoch}.pt")', ("run_*.pt",)),
        ('torch.save(x, "w-%d.ckpt" % epoch)', ("w-*.ckpt",)),
        ('torch.save(x, "w-{}.ckpt".format(epoch))', ("w-*.ckpt",)),
        ('def save(x, name="state.pt"):\n    torch.save(x, name)', ("state.pt",)),
        ('with open("m.pkl", "wb") as f:\n    pickle.dump(x, f)', ("m.pkl",)),
        ('class C:\n    ckpt_dir: str = "kept"\ntorch.save(x, Path(cfg.ckpt_dir) / "last.pt")', ("kept",)),
        ('cfg = {"dir": "kept"}\ntorch.save(x, cfg["dir"] + "/x_epoch.pt")', ("kept",)),
        ('flags.DEFINE_string("ckpt", "kept/x.pt", "")\ntorch.save(x, FLAGS.ckpt)', ("kept",)),
        ('torch.save(x, f"{unknown}/last.pt")', ("checkpoints",)),
        ('torch.save(x, "/tmp/last.pt")\ntorch.save(x, "../last.pt")', ("checkpoints",)),
        ('model.save("m.keras")\nmodel.save_weights("w.weights.h5")', ("m.keras", "w.weights.h5")),
        ("a = b\nb = a\ntorch.save(x, a)", ("checkpoints",)),
    ],
)
def test_what_a_script_saves_is_found_by_what_its_text_says(
    job_for: JobFor, code: str, checkpoints: tuple[str, ...]
) -> None:
    assert job_for(train_py=code).checkpoints == checkpoints


@pytest.mark.parametrize(
    ("flag", "resume"),
    [
        ('add_argument("--resume", default="")', "--resume ${checkpoint.newest}"),
        ('add_argument("--resume", action="store_true")', "--resume"),
        ('add_argument("--resume_from_checkpoint", type=str)', "--resume_from_checkpoint ${checkpoint.newest}"),
        ('add_argument("-r", "--resume-from")', "--resume-from ${checkpoint.newest}"),
        ('option("--restore/--no-restore", default=False)', "--restore"),
        ('add_argument("--resumes")', None),
        ('add_argument("--lr")', None),
    ],
)
def test_the_flag_that_makes_a_script_resume_is_found(job_for: JobFor, flag: str, resume: str | None) -> None:
    assert job_for(train_py=f'p.{flag}\ntorch.save(x, "ckpt.pt")').resume == resume


def test_of_two_that_may_be_meant_the_other_is_named(tmp_path: Path) -> None:
    for name in ("train_a.py", "train_b.py", "evaluate.py"):
        (tmp_path / name).write_text("import torch\nmodel.fit(x)\ntorch.save(x, 'm.pt')")
    found = propose(tmp_path)
    assert (found.script, found.others) == ("train_a.py", ("train_b.py",))


def test_requirements_and_secrets_and_ranks_are_offered_but_not_switched_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch.distributed as dist\nos.environ['HF_TOKEN']\nos.getenv('HOME')"
    )
    (tmp_path / "requirements.txt").touch()
    text = starter(tmp_path)
    assert "# environment: requirements.txt" in text
    assert "# secrets: [HF_TOKEN]" in text
    assert "# processes: gpus" in text
    assert read(tmp_path) == Job(name=read(tmp_path).name, run="python train.py")


def test_every_line_it_offers_can_be_switched_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, torch.distributed as dist\nos.environ['HF_TOKEN']")
    (tmp_path / "requirements.txt").touch()
    head, *lines = starter(tmp_path).splitlines()
    offered = [line.removeprefix("# ") if line.startswith("# ") and ":" in line else line for line in lines]
    path = tmp_path / "stoker.yaml"
    path.write_text("\n".join([head, *offered]))
    job = jobfile.read(path).job
    assert (job.processes, job.launcher, job.secrets, job.retries) == ("gpus", "torchrun", ("HF_TOKEN",), 2)


def test_the_script_is_not_run(job_for: JobFor, tmp_path: Path) -> None:
    job_for(train_py=f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_python_are_passed_over(job_for: JobFor) -> None:
    job = job_for("a", train_py="def (", main_py="x = 1")
    assert job.run == "python main.py"
    assert job_for("b", train_py="(" * 100_000, main_py="x = 1").run == "python main.py"


@pytest.mark.parametrize("name", ["Ünïcode", "42", "-_-", "true", "a" * 200, "null", "x #y: z"])
def test_any_folder_name_becomes_a_name(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    assert read(place).name


def test_a_script_with_an_odd_name_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "my train: é.py").write_text("import torch")
    assert read(tmp_path).run == "python 'my train: é.py'"


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3), st.lists(TEXTS, max_size=3))
@example([("\x7f", "~")], ["~"])
def test_whatever_the_script_says_the_starter_can_be_read(
    tmp_path: Path, flags: list[tuple[str, str]], writes: list[str]
) -> None:
    rows = [f"p.add_argument({'--' + name!r}, default={default!r})" for name, default in flags]
    rows += [f"torch.save(m, {path!r}); os.makedirs({path!r}); x = dict(output_dir={path!r})" for path in writes]
    (tmp_path / "train.py").write_text("\n".join(rows), encoding="utf-8")
    first = starter(tmp_path)
    assert first == starter(tmp_path)
    assert read(tmp_path).run.startswith("python train.py")


def test_names_beyond_the_first_plane_of_unicode_are_written_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('open("𑊀/checkpoint.pt", "wb")', encoding="utf-8")
    (tmp_path / "stoker.yaml").write_text(starter(tmp_path), encoding="utf-8")
    assert jobfile.read(tmp_path / "stoker.yaml").job.run == "python train.py"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            'import keras\nmodel.fit(x)\nmodel.save("/data/final.keras")',
            "saves to `/data/final.keras`, which is outside",
        ),
        ('import torch\nx = "~/models"\nloss.backward()\ntorch.save(m, f"{x}/m.pt")', "saves to `~/models/m.pt`"),
        ("import torch\nloss.backward()", "could not find where train.py saves"),
        ('import torch\nloss.backward()\ntorch.save(m, "m.pt")', "train.py loads no checkpoint"),
        ('import torch\nimport json\njson.load(f)\nloss.backward()\ntorch.save(m, "m.pt")', "loads no checkpoint"),
        ('import torch\nm = torch.load("m.pt")\nloss.backward()\ntorch.save(m, "m.pt")', ""),
        ('print("no training at all")', ""),
    ],
)
def test_what_the_job_file_cannot_mend_is_reported(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "train.py").write_text(code)
    lines = propose(tmp_path).advice
    assert any(said in line for line in lines) if said else not lines


def test_a_script_that_is_made_for_a_launcher_gets_one(job_for: JobFor) -> None:
    needs = "import os, torch.distributed as d\nd.init_process_group('gloo')\nrank = int(os.environ['RANK'])"
    assert job_for(train_py=needs).launcher == "torchrun"


def test_a_script_that_asks_for_its_rank_is_started_alone(job_for: JobFor) -> None:
    asks = "import os\nddp = int(os.environ.get('RANK', -1)) != -1\nif ddp: rank = int(os.environ['RANK'])"
    assert job_for(train_py=asks).launcher == "auto"


def test_a_package_that_is_a_program_is_started_as_one(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "__main__.py").write_text('from .loop import run\nif __name__ == "__main__":\n    run()\n')
    loop = 'import torch\ndef run(path="exp/s.pt"):\n    loss.backward()\n    torch.save({}, path)\n'
    (tmp_path / "trainer" / "loop.py").write_text(loop)
    found = read(tmp_path)
    assert (found.run, found.outputs) == ("python -m trainer", "exp")


def test_an_argument_without_a_name_is_given_the_data_that_is_there(job_for: JobFor) -> None:
    code = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("data_dir")\np.add_argument("--lr")'
    job = job_for(train_py=code, data__a_txt="")
    assert (job.run, job.data["data"].path) == ("python train.py ${data.data}", "data")


def test_of_several_commands_of_argparse_the_one_that_trains_is_started_with_its_own_options(job_for: JobFor) -> None:
    code = """
import argparse, torch
parser = argparse.ArgumentParser()
commands = parser.add_subparsers()
prepare = commands.add_parser("prepare")
prepare.add_argument("--output-dir", default="prepared")
training = commands.add_parser("train")
training.add_argument("--resume")
training.add_argument("--ckpt-dir", default="ckpt")
args = parser.parse_args()
loss.backward()
torch.save({}, args.ckpt_dir + "/last.pt")
"""
    job = job_for(main_py=code)
    assert job.run == "python main.py train --ckpt-dir ${checkpoints}" and job.resume == "--resume ${checkpoint.newest}"


def test_one_variable_for_the_parsers_of_several_commands_is_told_apart(job_for: JobFor) -> None:
    code = """
import argparse, torch
def test(args):
    torch.load(args.weights)
def train(args):
    loss.backward()
    torch.save({}, args.snapshots + "/last.pt")
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    sub = parser.add_subparsers(dest="cmd", required=True)
    p = sub.add_parser("train")
    p.add_argument("--snapshots", default="snapshots")
    p.set_defaults(func=train)
    p = sub.add_parser("test")
    p.add_argument("--weights", required=True)
    args = parser.parse_args()
    args.func(args)
def other(p):
    p.add_argument("--seed")
"""
    job = job_for(main_py=code)
    assert (job.run, job.checkpoints) == ("python main.py train", ("snapshots",))


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ('"--do_train", action="store_true"', "--do_train"),
        ('"--train", action="store_true"', "--train"),
        ('"--mode", choices=["train", "test"], required=True', "--mode train"),
        ('"--mode", choices=["test", "train"], default="test"', "--mode train"),
        ('"-m", "--phase", choices=["fit", "predict"]', "--phase fit"),
        ('"mode", choices=("train", "eval")', "train"),
        ('"action", choices=("train", "eval"), nargs="?"', "train"),
        ('"--mode", choices=["train", "test"], default="train"', ""),
        ('"--split", choices=["train", "test"], default="test"', ""),
        ('"--mode", choices=["fast", "slow"]', ""),
        ('"--do_train", action="store_true", default=True', ""),
        ('"--train_on_gpu", action="store_true"', ""),
    ],
)
def test_an_argument_that_says_what_to_do_says_train(job_for: JobFor, declared: str, told: str) -> None:
    code = f"import argparse, torch\np = argparse.ArgumentParser()\np.add_argument({declared})\na = p.parse_args()\n"
    job = job_for(main_py=code + "loss.backward()\ntorch.save({}, 'last.pt')\n")
    assert job.run == f"python main.py {told}".strip()


def test_scripts_of_hugging_face_are_told_to_train_where_they_look_for_it(job_for: JobFor) -> None:
    code = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, Trainer, TrainingArguments
@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "a model"})
    cache_dir: str = field(default=None)
(model_args, training_args) = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
if training_args.do_train:
    Trainer(args=training_args).train()
"""
    shown = "python run_mlm.py \\\n  --model_name_or_path gpt2 \\\n --do_train\n"
    job = job_for(run_mlm_py=code, README_txt=shown)
    assert job.run == "python run_mlm.py --output_dir ${outputs} --do_train --model_name_or_path gpt2"


def test_a_shell_script_below_gives_a_script_what_it_requires(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "scripts").mkdir()
    code = """
import argparse, os, pickle
p = argparse.ArgumentParser()
p.add_argument("--exp", required=True)
args = p.parse_args()
model.fit()
pickle.dump(model, open(os.path.join(args.exp, "model_last.pkl"), "wb"))
"""
    (tmp_path / "src" / "main.py").write_text(code)
    (tmp_path / "scripts" / "a_eval.sh").write_text("python src/evaluate.py --exp exp/base\n")
    (tmp_path / "scripts" / "a_train.sh").write_text('python src/main.py --exp "$1"\n')
    begin = '#!/usr/bin/env bash\nset -e\ncd "$(dirname "$0")/.."\nexport PYTHONPATH="$PWD/src"\n'
    (tmp_path / "scripts" / "run.sh").write_text(f'{begin}python src/main.py --exp exp/base "$@" | tee log\n')
    job = read(tmp_path)
    assert (job.run, job.checkpoints) == ("bash scripts/run.sh", ("exp",))


BESIDE_ITSELF = """
place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keep")
torch.save(m, place + "/last.pt")
"""
ONE_NAME = """
with open("conf/a.json") as f:
    c = json.load(f)
with open("keep/last.pkl", "wb") as f:
    pickle.dump(m, f)
"""
RENAMED = """
path = Path("keep/last.npz")
np.savez(path.with_suffix(".tmp.npz"))
path.with_suffix(".tmp.npz").rename(path)
"""
PROPERTY = """
class Config:
    root: str = "keep"
    @property
    def place(self):
        return Path(self.root) / "a"
torch.save(m, Config().place / "last.pt")
"""


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (BESIDE_ITSELF, "keep"),
        ('torch.save(m, Path(__file__).resolve().parent / "keep" / "last.pt")', "keep"),
        (ONE_NAME, "keep"),
        (RENAMED, "keep"),
        (PROPERTY, "keep/a"),
    ],
)
def test_places_are_found_however_a_script_puts_them_together(job_for: JobFor, code: str, kept: str) -> None:
    head = "import os, json, pickle, torch, numpy as np\nfrom pathlib import Path\nloss.backward()\n"
    job = job_for(train_py=head + code)
    assert kept in job.checkpoints and "conf" not in (job.outputs, *job.checkpoints)


def test_what_a_module_below_src_writes_is_named_from_the_folder_of_the_job_file(job_for: JobFor) -> None:
    code = 'import torch, pkg.model\nloss.backward()\ntorch.save(m, "ckpt/last.pt")\nif __name__ == "__main__": 1'
    job = job_for(src__pkg__train_py=code, src__pkg__model_py="", src__pkg____init___py="")
    assert (job.run, job.checkpoints) == ("cd src && python -m pkg.train", ("src/ckpt",))


def test_an_absolute_path_that_a_flag_can_change_is_changed(tmp_path: Path) -> None:
    code = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--state-file", default="/scratch/state.pt")
args = parser.parse_args()
loss.backward()
torch.save({}, args.state_file)
"""
    (tmp_path / "train.py").write_text(code)
    found = propose(tmp_path)
    assert "run: python train.py --state-file ${checkpoints}/state.pt" in found.text
    assert not any("/scratch" in line for line in found.advice)


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ('torch.save(m, Path.cwd() / "ck" / "last.pt")', "ck"),
        ('torch.save(m, os.path.join(os.getcwd(), "ck", "last.pt"))', "ck"),
        ('torch.save(m, "{}/last-{:03d}.pt".format("ck", e))', "ck"),
        ('torch.save(m, "{d}/last.pt".format(d="ck"))', "ck"),
        ('torch.save(m, "{0}/{1}/last.pt".format("ck", e))', "ck"),
        ('np.save("last.npy", w)', "last.npy"),
        ('with Path("ck", "last.pkl").open("wb") as f:\n    pickle.dump(m, f)', "ck"),
        ('with gzip.open("last.pkl.gz", "wb") as f:\n    pickle.dump(m, f)', "last.pkl.gz"),
        ('with h5py.File("last.h5", "w") as f:\n    f["w"] = 1', "last.h5"),
        ('with h5py.File("data.h5", "r") as f:\n    f["w"]', "checkpoints"),
        ('pickle.dump(m, unknown.open("wb"))', "checkpoints"),
        ('Path("last.bin").write_bytes(pickle.dumps(m))', "last.bin"),
        ('checkpoints.save_checkpoint(ckpt_dir="ck", target=s, step=1)', "ck"),
        ('dcp.save({"m": m}, checkpoint_id="ck/step1")', "ck"),
    ],
)
def test_what_is_saved_is_found_by_whichever_call_saves_it(tmp_path: Path, code: str, kept: str) -> None:
    head = "import torch, os, pickle, gzip, h5py\nimport numpy as np\nfrom pathlib import Path\nloss.backward()\n"
    (tmp_path / "train.py").write_text(f"{head}{code}\n")
    assert read(tmp_path).checkpoints == (kept,)


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ('e = 0\nwhile True:\n    torch.save(m, f"m_{e}.pt")\n    e += 1', "m_*.pt"),
        ('e = 0\nfor e in range(e, 3):\n    torch.save(m, "m_{}.pt".format(e))', "m_*.pt"),
        ('e = 0\nfor e in range(e, 3):\n    torch.save(m, "m_%d.pt" % e)', "m_*.pt"),
        ('e = 0\nwhile True:\n    e = e + 1\n    torch.save(m, f"m_{e}.pt")', "m_*.pt"),
        ('def save(m, e=0):\n    torch.save(m, f"m_{e}.pt")\nsave(m, unknown)', "m_*.pt"),
        (
            'class T:\n    e = 0\n    def go(self):\n        self.e += 1\n        torch.save(m, f"m_{self.e}.pt")',
            "m_*.pt",
        ),
        ('size = 50\ntorch.save(m, f"m_{size}.pt")', "m_50.pt"),
    ],
)
def test_a_number_that_changes_makes_a_glob_of_a_name(tmp_path: Path, code: str, kept: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\nloss.backward()\n{code}\n")
    assert read(tmp_path).checkpoints == (kept,)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", '[paths]\nckpt = "kept/ck"\n'),
        ("config.json", '{"paths": {"ckpt": "kept/ck"}}'),
        ("config.ini", "[paths]\nckpt = kept/ck\n"),
        ("config.yaml", "paths: {ckpt: kept/ck}\n"),
    ],
)
def test_places_that_a_configuration_file_names_are_found(tmp_path: Path, name: str, text: str) -> None:
    code = f'cfg = load("{name}")\nloss.backward()\ntorch.save(m, cfg["paths"]["ckpt"] + "/last.pt")\n'
    (tmp_path / "train.py").write_text(f"import torch\nx = 'a/.yaml .toml .json'.split(), '.yaml'\n{code}")
    (tmp_path / name).write_text(text)
    assert read(tmp_path).checkpoints == ("kept/ck",)
    (tmp_path / name).write_text("[ { = \x00")
    assert read(tmp_path).checkpoints == ("checkpoints",)


def test_a_notebook_in_a_folder_below_is_found_where_nothing_else_trains(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": "import torch\nloss.backward()"}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "fit.ipynb").write_text(text)
    assert read(tmp_path).run == "notebooks/fit.ipynb"
    (tmp_path / "notebooks" / "fit.ipynb").rename(tmp_path / "notebooks" / "Train Model.ipynb")
    assert read(tmp_path).run == "'notebooks/Train Model.ipynb'"
    (tmp_path / "train.py").write_text("import torch\nloss.backward()\n")
    assert read(tmp_path).run == "python train.py"


def test_a_switch_that_starts_over_is_not_taken_for_one_that_resumes(job_for: JobFor) -> None:
    code = 'import argparse, torch\np = argparse.ArgumentParser()\np.add_argument("--restart", action="store_true")\n'
    assert job_for(train_py=code + 'loss.backward()\ntorch.save(m, "a.pt")').resume is None


REQUIRES = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("-opt", required=True)
model.fit(parser.parse_args().opt)
torch.save(model, "last.pt")
"""


def test_what_a_script_requires_is_taken_from_the_readme(job_for: JobFor) -> None:
    shown = "# It\n\n    python train.py -opt <your config>\n\n```\n$ python train.py -opt options/small.yml\n```\n"
    assert job_for(train_py=REQUIRES, README_txt=shown).run == "python train.py -opt options/small.yml"


def test_a_readme_with_something_to_fill_in_gives_no_command(job_for: JobFor) -> None:
    assert job_for(train_py=REQUIRES, README_txt="python train.py -opt /path/to/config.yml\n").run == "python train.py"


def test_without_a_script_the_command_of_the_readme_is_taken(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "Train with `python` as follows:\n\npython -m spacy train a.cfg --output training/\n"
    )
    found = propose(tmp_path)
    job = read(tmp_path)
    assert (job.run, job.outputs) == ("python -m spacy train a.cfg --output training/", "training")
    assert "from the README" in found.advice[0]


def test_the_program_that_uses_a_class_which_trains_is_taken(job_for: JobFor) -> None:
    trainer = "import torch\nclass Trainer:\n    def train(self):\n        loss.backward()\n"
    trainer += "        torch.save(self, 'm.pt')\n"
    assert (
        job_for(trainer_py=trainer, ddpm_py="from trainer import Trainer\nTrainer().train()\n").run == "python ddpm.py"
    )


def test_a_shell_scripts_own_variables_are_known(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        '#!/bin/bash\nstage=${1:-0}\nexp=exp/tdnn\nout="${exp}/model"\nwhen=$(date)\n'
        "if [ $stage -le 1 ]; then\n  python -m speech.train --exp-dir ${out} --tag $when 2>&1 | tee train.log\nfi\n"
    )
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "train.py").write_text(
        "import argparse, os, torch\np = argparse.ArgumentParser()\np.add_argument('--exp-dir', required=True)\n"
        "a = p.parse_args()\nif os.path.exists(os.path.join(a.exp_dir, 'last.pt')):\n    torch.load('x')\n"
        "loss.backward()\ntorch.save(model, os.path.join(a.exp_dir, 'last.pt'))\n"
    )
    job = read(tmp_path)
    assert (job.run, job.checkpoints) == ("bash run.sh", ("exp",))


NEEDS_CONFIG = """import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("-c", "--config", default=None, type=str)
args = p.parse_args()
assert args.config is not None, "a configuration is needed"
loss.backward()
torch.save(model, "saved/epoch_1.pt")
"""


def test_a_configuration_that_an_assertion_wants_is_given(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NEEDS_CONFIG)
    assert read(tmp_path).run == "python train.py"
    (tmp_path / "config.json").write_text("{}")
    assert read(tmp_path).run == "python train.py --config config.json"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "big.yaml").write_text("a: 1\n")
    assert read(tmp_path).run == "python train.py", "which of the two is not known"
    (tmp_path / "README.md").write_text("Try `python train.py -c configs/big.yaml` to run it.\n")
    assert read(tmp_path).run == "python train.py -c configs/big.yaml"


@pytest.mark.parametrize(
    ("code", "resumes"),
    [
        (
            "for epoch in range(3):\n    loss.backward()\n    torch.save(m, 'best.pt')\nm = torch.load('best.pt')\n",
            False,
        ),
        (
            "m = torch.load('best.pt')\nfor epoch in range(3):\n    loss.backward()\n    torch.save(m, 'best.pt')\n",
            True,
        ),
        (
            "def train():\n    for epoch in range(3):\n        loss.backward()\n        torch.save(m, 'best.pt')\n"
            "    m.load_state_dict(torch.load('best.pt'))\ntrain()\n",
            False,
        ),
        (
            "def resume():\n    return torch.load('best.pt')\nm = resume()\n"
            "for epoch in range(3):\n    loss.backward()\n    torch.save(m, 'best.pt')\n",
            True,
        ),
    ],
)
def test_the_best_model_that_is_loaded_at_the_end_resumes_nothing(code: str, resumes: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{code}")
    assert any("loads no checkpoint" in line for line in propose(tmp_path).advice) is not resumes
