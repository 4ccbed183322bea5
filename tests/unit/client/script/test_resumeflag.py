"""Which argument makes a script resume: by its name, and by what the script does with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.client.script.resumeflag import refused, resume_arguments
from stoker.client.script.script import look
from stoker.client.script.starter import propose

HEAD = "import argparse, torch\np = argparse.ArgumentParser()\n"
LOADS = """
a = p.parse_args()
if a.{0}:
    state = torch.load(a.{0})
    first = state["epoch"]
torch.save(model, "last.pt")
"""
NEWEST = "${checkpoint.newest}"


def resume(tmp_path: Path, code: str, **modules: str) -> str:
    (tmp_path / "train.py").write_text(code)
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    script = look(tmp_path / "train.py", "train.py")
    assert script
    script.follow(tmp_path)
    return resume_arguments(script, {"save_dir": "outputs"})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ('"--resume"', f"--resume {NEWEST}"),
        ('"--resume", action="store_true"', "--resume"),
        ('"--resume", nargs="?", const=True, default=False', f"--resume {NEWEST}"),
        ('"--resume", action=argparse.BooleanOptionalAction', "--resume"),
        ('"--resume_from_checkpoint", type=str', f"--resume_from_checkpoint {NEWEST}"),
        ('"--resume-from", default=""', f"--resume-from {NEWEST}"),
        ('"--auto-resume", action="store_true"', "--auto-resume"),
        ('"--continue", dest="cont", action="store_true"', "--continue"),
        ('"--continue_training", action="store_true"', "--continue_training"),
        ('"--restore", action="store_true"', "--restore"),
        ('"--restore_path"', f"--restore_path {NEWEST}"),
        ('"--train_from", default=""', f"--train_from {NEWEST}"),
        ('"--ckpt"', f"--ckpt {NEWEST}"),
        ('"--load"', f"--load {NEWEST}"),
        ('"--load_checkpoint_path"', f"--load_checkpoint_path {NEWEST}"),
        ('"--checkpoint"', f"--checkpoint {NEWEST}"),
        ('"--weights"', f"--weights {NEWEST}"),  # its script reads an epoch from it
        ('"--init_from", default="scratch"', "--init_from resume"),
        ('"--no-resume", action="store_true"', ""),
        ('"--checkpoint_every", type=int', ""),
        ('"--resume_optimizer_only", action="store_true"', ""),
        ('"--resume", type=int, default=0', ""),  # the number of an epoch, or 0 and 1
        ('"--resume_from", type=float', ""),
        ('"--resume_iters", type=int, default=None', "--resume_iters ${checkpoint.number}"),
        ('"--load-epoch", type=int, default=0', "--load-epoch ${checkpoint.number}"),
        ('"--resume_iters", type=int); p.add_argument("--resume"', f"--resume {NEWEST}"),
        ('"--resume", choices=["auto", "never"], default="never"', "--resume auto"),
        ('"--resume", choices=("never", "must"), default="never"', ""),
        ('"-r", dest="resume"', f"-r {NEWEST}"),
        ('"--epochs", type=int', ""),
    ],
)
def test_a_flag_is_taken_for_what_it_says(tmp_path: Path, declared: str, expected: str) -> None:
    told = re.search(r'dest="(\w+)"', declared)
    name = told[1] if told else declared.split('"')[1].lstrip("-").replace("-", "_")
    assert resume(tmp_path, f"{HEAD}p.add_argument({declared}){LOADS.format(name)}") == expected


BEGINS = """
a = p.parse_args()
if {when}:
    model.load_state_dict(torch.load("saved/G_%s.pth" % a.{load}))
for epoch in range(a.{first}, 60):
    torch.save(model.state_dict(), "saved/G_%d.pth" % epoch)
"""
EPOCH = 'p.add_argument("--epoch", type=int, default=0, help="epoch to start from")\n'
START = (
    'p.add_argument("--start_epoch", type=int, default=1)\np.add_argument("--continue_train", action="store_true")\n'
)


def test_a_number_that_the_loop_begins_with_is_given_if_the_script_reads_it_from_nowhere(tmp_path: Path) -> None:
    number = "${checkpoint.number}"
    loads = BEGINS.format(when="a.epoch != 0", load="epoch", first="epoch")
    assert resume(tmp_path, HEAD + EPOCH + loads) == f"--epoch {number}"
    told = BEGINS.format(when="a.continue_train", load="which", first="start_epoch")
    assert resume(tmp_path, HEAD + START + told) == f"--continue_train --start_epoch {number}"
    reads = told.replace("for epoch", "a.start_epoch = state['epoch']\nfor epoch")
    assert resume(tmp_path, HEAD + START + reads) == "--continue_train"
    one_file = told.replace('"saved/G_%d.pth" % epoch', '"saved/G.pth"')
    assert resume(tmp_path, HEAD + START + one_file) == "--continue_train", "its name has no number"


def test_a_variable_of_the_flags_name_may_be_the_path_to_save_to_later_on(tmp_path: Path) -> None:
    code = """
def train(checkpoint_path):
    if checkpoint_path is not None:
        epoch = torch.load(checkpoint_path)["epoch"]
    checkpoint_path = f"out/checkpoint_{epoch}"
    torch.save(model, checkpoint_path)

train(p.parse_args().checkpoint_path)
"""
    assert resume(tmp_path, f'{HEAD}p.add_argument("--checkpoint_path")\n{code}') == f"--checkpoint_path {NEWEST}"


def test_a_flag_that_says_where_to_save_is_not_one_to_resume_with(tmp_path: Path) -> None:
    saves = "a = p.parse_args()\nif exists(a.ckpt):\n    torch.load(a.ckpt)\ntorch.save(model, a.ckpt)\n"
    assert resume(tmp_path, f'{HEAD}p.add_argument("--ckpt", default="last.pt")\n{saves}') == ""


def test_weights_to_begin_with_are_not_a_checkpoint(tmp_path: Path) -> None:
    begins = "a = p.parse_args()\nmodel.load_state_dict(torch.load(a.weights))\n"
    assert resume(tmp_path, f'{HEAD}p.add_argument("--weights")\n{begins}') == ""


def test_a_flag_that_says_it_goes_before_one_that_may_mean_it(tmp_path: Path) -> None:
    both = 'p.add_argument("--load")\np.add_argument("--pretrained")\np.add_argument("--resume")\n'
    assert resume(tmp_path, HEAD + both) == f"--resume {NEWEST}"


def test_flags_of_a_module_that_reads_the_command_line_are_known(tmp_path: Path) -> None:
    options = f'{HEAD}def get():\n    p.add_argument("--resume", action="store_true")\n    return p.parse_args()\n'
    assert resume(tmp_path, "import options\nargs = options.get()\n", options=options) == "--resume"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import click\n@click.option('--resume/--no-resume', default=False)\ndef main(resume): pass\n", "--resume"),
        ("import click\n@click.option('--ckpt', type=click.Path())\ndef main(ckpt): pass\n", f"--ckpt {NEWEST}"),
        ("from absl import flags\nflags.DEFINE_bool('resume', False, 'x')\n", "--resume"),
        ("from absl import flags\nflags.DEFINE_string('restore_from', None, 'x')\n", f"--restore_from {NEWEST}"),
        ("import typer\napp = typer.Typer()\n@app.command()\ndef main(resume: bool = False): pass\n", "--resume"),
        ("import typer\ndef main(resume_from: str = ''): pass\ntyper.run(main)\n", f"--resume-from {NEWEST}"),
        ("import fire\ndef train(resume_from=None): pass\nfire.Fire(train)\n", f"--resume_from {NEWEST}"),
        ("init_from = 'scratch'\nexec(open('configurator.py').read())\n", "--init_from=resume"),
    ],
)
def test_other_libraries_for_command_lines_are_known(tmp_path: Path, code: str, expected: str) -> None:
    assert resume(tmp_path, code) == expected


def test_an_empty_key_of_a_hydra_configuration_is_given(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("ckpt_path: null\ntrainer:\n  epochs: 3\n")
    code = "import hydra\n@hydra.main(config_path='conf', config_name='train')\ndef main(cfg): pass\n"
    assert resume(tmp_path, code) == f"ckpt_path={NEWEST}"


def test_a_key_that_is_asked_for_and_has_no_value_is_given_as_a_pair(tmp_path: Path) -> None:
    code = "import sys, lightgbm\ngiven = dict(word.split('=', 1) for word in sys.argv[1:])\n"
    assert resume(tmp_path, code + "start = given.pop('input_model', None)\n") == f"input_model={NEWEST}"
    assert resume(tmp_path, code + "start = given.pop('input_model', 'base.txt')\n") == ""


DEEPSPEED = (
    'model.save_checkpoint({place}, tag=f"step{{step}}")\nif a.load_dir:\n    model.load_checkpoint(a.load_dir)\n'
)
OWN_ENGINE = """
from engine import Engine
engine = Engine()
if a.load_dir:
    engine.load_checkpoint(a.load_dir)
engine.save_checkpoint({place}, f"step{{step}}")
"""
ENGINE = """
class Engine:
    def save_checkpoint(self, save_dir, tag):
        torch.save(self.state, os.path.join(save_dir, tag, "state.pt"))
        with open(os.path.join(save_dir, "latest"), "w") as file:
            file.write(tag)
    def load_checkpoint(self, load_dir):
        with open(os.path.join(load_dir, "latest")) as file:
            tag = file.read()
        self.state = torch.load(os.path.join(load_dir, tag, "state.pt"))
"""
STATE = "if a.load_dir:\n    accelerator.load_state(a.load_dir)\naccelerator.save_state({place})\n"
BY_STEP = "if a.load_dir:\n    accelerator.load_state(a.load_dir)\naccelerator.save_state(f'out/step_{{step}}')\n"
OF_ONE_NAME = """
if a.load_dir:
    accelerator.load_state(a.load_dir)
save_dir = f"epoch_{{epoch}}"
if a.save_dir:
    save_dir = os.path.join(a.save_dir, save_dir)
accelerator.save_state(save_dir)
"""
PARTS = """
if a.load_dir:
    model.load_state_dict(torch.load(os.path.join(a.load_dir, "model.pt")))
torch.save(model, f"out/epoch_{{epoch}}/model.pt")
"""


@pytest.mark.parametrize(
    ("code", "place", "expected"),
    [
        (DEEPSPEED, "a.save_dir", "${outputs}"),
        (DEEPSPEED, "'ds/run1'", "ds/run1"),
        (OWN_ENGINE, "a.save_dir", "${outputs}"),
        (STATE, "'state'", "state"),
        (BY_STEP, "", NEWEST),
        (OF_ONE_NAME, "", NEWEST),
        (PARTS, "", NEWEST),
        (
            "model.load_state_dict(torch.load(a.load_dir)['step'])\ntorch.save(model, a.save_dir + '/last.pt')",
            "",
            NEWEST,
        ),
    ],
)
def test_a_flag_for_the_folder_of_all_checkpoints_gets_that(
    tmp_path: Path, code: str, place: str, expected: str
) -> None:
    flags = 'p.add_argument("--save_dir", default="ds")\np.add_argument("--load_dir")\na = p.parse_args()\n'
    told = resume(tmp_path, f"import os\n{HEAD}{flags}{code.format(place=place)}", engine=f"import os, torch\n{ENGINE}")
    assert told == f"--load_dir {expected}"


def test_a_flag_for_the_folder_of_an_earlier_start_gets_no_checkpoint(tmp_path: Path) -> None:
    code = """
args = p.parse_args()
run_dir = args.resume or Path("runs") / datetime.now().strftime("%Y-%m-%d")
if args.resume:
    torch.load(run_dir / "weights" / "last.pt")
torch.save(model, run_dir / "weights" / "last.pt")
"""
    assert resume(tmp_path, f'{HEAD}p.add_argument("--resume", type=Path)\n{code}') == ""


REFUSES = """
a = p.parse_args()
if os.path.exists(a.save_dir) and os.listdir(a.save_dir) and not a.{0}:
    raise ValueError("exists and is not empty")
if os.path.exists(a.save_dir + "/last.pt"):
    torch.load(a.save_dir + "/last.pt")
torch.save(model, a.save_dir + "/last.pt")
"""


@pytest.mark.parametrize(
    ("declared", "code", "expected"),
    [
        (
            '"--overwrite_output_dir", action="store_true"',
            REFUSES.format("overwrite_output_dir"),
            "--overwrite_output_dir",
        ),
        ('"-f", "--force", action="store_true"', REFUSES.format("force"), "--force"),
        ('"--overwrite", action="store_true"', REFUSES.format("overwrite") + "shutil.rmtree(a.save_dir)\n", ""),
        (
            '"--overwrite", action="store_true"); p.add_argument("--resume", action="store_true"',
            REFUSES.format("overwrite and not a.resume"),
            "--resume",
        ),
        ('"--overwrite", action="store_true"', REFUSES.format("seed"), ""),  # it does not ask for it
        (
            '"--overwrite", action="store_true"); p.add_argument("--resume"',
            REFUSES.format("overwrite"),
            f"--resume {NEWEST} --overwrite",
        ),
    ],
)
def test_a_script_that_refuses_a_folder_with_files_is_told_to_take_it(
    tmp_path: Path, declared: str, code: str, expected: str
) -> None:
    flags = f'p.add_argument("--save_dir", default="out")\np.add_argument({declared})\n'
    assert resume(tmp_path, f"import os\n{HEAD}{flags}{code}") == expected


MAKES = "import os\nfrom pathlib import Path\nimport torch\nOUT = 'results'\n"
SAVES = "\nmodel.backward()\ntorch.save(model, OUT + '/epoch_1.pt')\n"
CREATES = {  # by what it does first, whether it also refuses when it is told to resume
    "os.makedirs(OUT)": True,
    "os.mkdir(OUT)": True,
    "Path(OUT).mkdir(parents=True)": True,
    "os.makedirs(OUT, exist_ok=False)": True,
    "Path(OUT).mkdir(exist_ok=args.resume)": False,
    "if os.path.exists('other'):\n    pass\nelse:\n    os.mkdir(OUT)": True,
    "if os.path.exists(OUT):\n    raise ValueError('exists')": True,
    "if Path(OUT).exists() and not args.resume:\n    sys.exit('exists')": False,
    "assert not os.path.isdir(OUT), 'exists'": True,
}
ACCEPTS = [
    "os.makedirs(OUT, exist_ok=True)",
    "Path(OUT).mkdir(exist_ok=True)",
    "os.makedirs(os.path.join(OUT, str(when)))",
    "if not os.path.exists(OUT):\n    os.makedirs(OUT)",
    "if os.path.isdir(OUT):\n    pass\nelse:\n    os.makedirs(OUT)",
    "try:\n    os.makedirs(OUT)\nexcept FileExistsError:\n    pass",
    "if os.path.exists(OUT) and os.listdir(OUT):\n    raise ValueError('not empty')",
    "if not os.path.exists(OUT):\n    raise ValueError('missing')",
    "assert os.path.isdir(OUT)",
    "shutil.rmtree(OUT, ignore_errors=True)\nos.makedirs(OUT)",
]


@pytest.mark.parametrize(("folder", "kept"), [("'results/run'", "checkpoints"), ("f'results/{when}'", "results")])
def test_what_holds_a_folder_that_the_script_refuses_is_not_restored_for_one_that_begins_anew(
    folder: str, kept: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MAKES + f"os.makedirs({folder})\n" + SAVES)
    assert re.search(r"^checkpoints: (\S+)", propose(tmp_path).text, re.M)[1] == kept  # type: ignore[index]


@pytest.mark.parametrize(("first", "always"), CREATES.items())
def test_a_folder_that_the_script_creates_itself_is_left_to_it(first: str, always: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MAKES + first + SAVES)
    script = look(tmp_path / "train.py", "train.py")
    assert script
    assert refused(script, {}) == {"results": always}
    text = propose(tmp_path).text
    assert "\ncreate_folders: false" in text
    assert "\ncheckpoints: checkpoints " in text, "restored, it would prevent the next start"


@pytest.mark.parametrize("first", ACCEPTS)
def test_a_folder_that_may_exist_is_created_as_usual(first: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MAKES + first + SAVES)
    text = propose(tmp_path).text
    assert "create_folders" not in text
    assert "\ncheckpoints: results " in text


def test_a_script_that_resumes_from_a_path_and_wants_a_new_folder_gets_one_for_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse, os, torch\np = argparse.ArgumentParser()\np.add_argument('--save_dir')\n"
        "p.add_argument('--resume')\nargs = p.parse_args()\nos.makedirs(args.save_dir)\n"
        "if args.resume:\n    state = torch.load(args.resume)\n"
        "loss.backward()\ntorch.save(state, os.path.join(args.save_dir, 'last.pt'))\n"
    )
    text = propose(tmp_path).text
    assert "run: python train.py --save_dir ${outputs}/$STOKER_ATTEMPT\n" in text
    assert "create_folders" not in text
