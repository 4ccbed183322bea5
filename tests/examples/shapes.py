"""Scripts after the shape of public ones: the job file that each is to get, and what it does when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).with_name("scripts")
NEWEST = "${checkpoint.newest}"


class Story(NamedTuple):
    """What a script prints after each unit of work, a metric that it reports, and the model that it leaves."""

    done: str
    metric: str
    model: str
    # Units that may be repeated: one interval between its saves, and the one that is under way.
    lost: int | None = 2
    each: int = 1  # units between two of the lines
    prepare: str = ""
    quick: bool = False  # part of every check
    beside: str = ""  # the folder of a package that cannot be installed with the others, in `.services`


class Shape(NamedTuple):
    run: str
    outputs: str
    checkpoints: tuple[str, ...]
    story: Story
    resume: str | None = None
    launcher: str = "auto"
    folder: str = ""  # that a user is in
    creates: bool = False  # its folders itself


ANEW = None  # it loads nothing: after an eviction it begins again

SHAPES = {
    "bash_wrapper": Shape(
        "bash train.sh", "outputs", ("fitted",), Story(r"^epoch=(\d+) loss", "loss", "fitted/weights.pkl")
    ),
    # What it requires is in its README, and its folders are values of a dictionary.
    "basicsr": Shape(
        "python basicsr/train.py -opt options/train_SRResNet.yml",
        "experiments",
        ("experiments",),
        Story(r"iter: +(\d+), lr", "l_pix", "SRResNet_x4/models/net_g_latest.pth", 8),
        "--auto_resume",
    ),
    "change_folder": Shape(
        "python run_experiment.py",
        "experiments",
        ("experiments",),
        Story(r"^it (\d+) loss", "loss", "exp1/state.pickle"),
    ),
    "click_group": Shape(
        "python cli.py train --out ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^batch (\d+)/240", "acc", "model.joblib", 10, 5),
        "--resume",
    ),
    "constants": Shape(
        "python experiment.py", "saved", ("saved",), Story(r"^epoch (\d+): loss", "loss", "state.pt", quick=True)
    ),
    # Its options are declared in classes, and its loop begins with the number that one of them gives.
    "cyclegan": Shape(
        "python train.py --dataroot ${data.dataroot} --checkpoints_dir ${checkpoints}",
        "outputs",
        ("checkpoints",),
        Story(r"^End of epoch (\d+)", "g_a", "checkpoints/experiment_name/latest_net_G_A.pth"),
        "--continue_train --epoch_count ${checkpoint.number}",
    ),
    "data_science": Shape(
        "python src/models/train_model.py data/processed/train.csv models/model.joblib",
        "outputs",
        ("models",),
        Story(r"epoch (\d+) ", "auc", "models/model.joblib", prepare="src/make_dataset.py"),
    ),
    "ddp_snapshot": Shape(
        "python multigpu_torchrun.py",
        "outputs",
        ("snapshot.pt",),
        Story(r"^\[GPU0\] Epoch (\d+)", "loss", "snapshot.pt", quick=True),
        launcher="torchrun",
    ),
    "deepspeed_config": Shape(
        "python train.py --save_dir ${outputs} --deepspeed_config ds_config.json",
        "outputs",
        ("outputs",),
        Story(r"^\[ *(\d+),", "loss", "global_step180/mp_rank_00_model_states.pt"),
        "--load_dir ${outputs}",
    ),
    "detection": Shape(
        "python tools/train_net.py",
        "outputs",
        ("output",),
        Story(r"iter: (\d+) ", "total_loss", "output/model_final.pth", 4, 2),
        "--resume",
    ),
    "diffusers_train": Shape(
        "python train_unconditional.py --output_dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"Saved state to .*checkpoint-(\d+)", "loss", "diffusion_pytorch_model.bin", 16, 8),
        f"--resume_from_checkpoint {NEWEST}",
    ),
    "dino": Shape(
        "python main_dino.py --output_dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^Epoch: \[(\d+)/40\]  \[1", "train_loss", "checkpoint.pth"),
    ),
    # The class that trains is in a file with a likely name, and another file uses it.
    "diffusion_trainer": Shape(
        "python train_ddpm.py", "results", ("results",), Story(r"milestone (\d+) saved", "loss", "model-*.pt")
    ),
    "dqn_replay": Shape(
        "python dqn.py",
        "outputs",
        ("dqn_cartpole.pth", "replay_buffer.pkl"),
        Story(r"^Episode (\d+)\t", "total_reward", "dqn_cartpole.pth"),
    ),
    "env_folder": Shape(
        "python pretrain.py", "outputs", ("ckpt",), Story(r"^\| step +(\d+) \|", "loss", "ckpt/step_000240.pt", 8, 4)
    ),
    "fairseq": Shape(
        "python train.py --save-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"epoch (\d+) \| loss", "ppl", "checkpoint_last.pt"),
    ),
    "gan": Shape(
        "python dcgan.py --outf ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^\[(\d+)/", "loss_d", "netG_epoch_*.pth", ANEW),
    ),
    "glue_no_trainer": Shape(
        "python run_glue_no_trainer.py --output_dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^epoch (\d+): ", "accuracy", "pytorch_model.bin"),
        f"--resume_from_checkpoint {NEWEST}",
    ),
    # Its options are keys of a dictionary, and where it writes is a variable or a temporary folder.
    "guided_diffusion": Shape(
        "python -m scripts.image_train",
        "outputs",
        ("outputs",),
        Story(r"^\| step +\| (\d+)", "loss", "model000200.pt", 8, 2),
        f"--resume_checkpoint {NEWEST}",
    ),
    "hf_trainer": Shape(
        "python finetune.py",
        "results",
        ("results", "fine-tuned-model"),
        Story(r"'epoch': '?(\d+)", "loss", "fine-tuned-model/model.safetensors"),
    ),
    "huggingface": Shape(
        "python run_clm.py --output_dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"epoch (\d+) ends", "train_loss", "model.safetensors"),
    ),
    "hydra_config": Shape(
        "python train.py",
        "outputs",
        ("ckpt_hydra",),
        Story(r"^epoch (\d+) ", "train/loss", "ckpt_hydra/epoch_039.pt", beside="hydra"),
    ),
    "hydra_template": Shape(
        "python src/train.py",
        "logs",
        ("logs/train/runs/*_*/checkpoints",),
        Story(r"^epoch (\d+) over", "train/loss", "train/runs/*/checkpoints/last.ckpt", beside="hydra"),
        "ckpt_path=${checkpoint.newest}",
    ),
    "imagenet": Shape(
        "python main.py",
        "outputs",
        ("checkpoint.pth.tar", "model_best.pth.tar"),
        Story(r"^Epoch: \[(\d+)\]", "loss", "checkpoint.pth.tar", quick=True),
        f"--resume {NEWEST}",
    ),
    "jax_flax": Shape(
        "python train.py --workdir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"train epoch: (\d+), loss", "loss", "checkpoint_000120", 4, 2),
    ),
    "jax_npz": Shape(
        "python main.py",
        "experiments",
        ("experiments",),
        Story(r"^step= +(\d+) loss", "loss", "debug/final.npz", 10, 5),
    ),
    # Its folders are variables of a shell script.
    "kaldi_stages": Shape(
        "bash run.sh",
        "outputs",
        ("exp",),
        Story(r"INFO: (\d+)epoch results", "train_acc", "exp/tdnn/valid.acc.ave.pth"),
    ),
    "keras_backup": Shape(
        "python mnist_convnet.py",
        "outputs",
        ("backup", "mnist_convnet.keras"),
        Story(r"^Epoch (\d+)/40", "accuracy", "mnist_convnet.keras"),
    ),
    "keras_best": Shape(
        "python train_text.py --backup-dir ${checkpoints}",
        "outputs",
        ("checkpoints", "models"),
        Story(r"^Epoch (\d+)/40", "val_loss", "models/best_model.keras"),
    ),
    "keras_checkpoint": Shape(
        "python train.py", "training_1", ("training_1",), Story(r"^Epoch (\d+)/40", "loss", "cp-0040.keras")
    ),
    "keras_transfer": Shape(
        "python transfer_learning.py --model_dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^Epoch (\d+)/40", "val_accuracy", "final.keras"),
        f"--load {NEWEST}",
    ),
    "learner": Shape(
        "python train.py", "work", ("work",), Story(r"^epoch (\d+) train_loss", "train_loss", "models/stage-1.pth")
    ),
    "lightgbm_continue": Shape(
        "python train_lgb.py",
        "lgb_models",
        ("lgb_models",),
        Story(r"^\[(\d+)\]", "training/binary_logloss", "final.txt", 4, 2),
    ),
    "lightning_autoencoder": Shape(
        "python autoencoder.py",
        "saved_models",
        ("saved_models",),
        # Two files a save, a third of a second apart: the last pair may not be unchanged for long enough to be saved.
        Story(r"^starting epoch (\d+)", "train_loss", "autoencoder/last.ckpt", 3),
    ),
    "lightning_cli": Shape(
        "python train.py",
        "outputs",
        ("lightning_logs",),
        Story(r"^epoch (\d+) done", "train_loss", "lightning_logs/version_*/checkpoints/*.ckpt", quick=True),
        f"--ckpt_path {NEWEST}",
    ),
    "makefile": Shape(
        "python -m trainer.main --exp-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^epoch (\d+) loss", "loss", "epoch_040.pt"),
        "--continue",
    ),
    "many_scripts": Shape(
        "python finetune_bert.py --checkpoint_dir ${checkpoints}",
        "outputs",
        ("checkpoints",),
        Story(r"^epoch (\d+)/40", "loss", "checkpoints/latest.pt"),
        "--resume",
    ),
    "mingpt": Shape(
        "python chargpt.py", "out", ("out",), Story(r"; iter (\d+): train", "train_loss", "chargpt/model.pt", 4, 2)
    ),
    "mnist": Shape(
        "python main.py", "outputs", ("mnist_cnn.pt",), Story(r"^Train Epoch: (\d+)", "loss", "mnist_cnn.pt", ANEW)
    ),
    "mmdetection": Shape(
        "python tools/train.py --work-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"Epoch \[(\d+)\]\[5/5\]", "loss_cls", "latest.pth"),
        f"--resume-from {NEWEST}",
    ),
    # A variable of the environment says where it writes, instead of a folder outside of its own.
    "nanochat": Shape(
        "python -m scripts.base_train",
        "outputs",
        ("outputs",),
        Story(r"^step (\d+)/", "loss", "base_checkpoints/d20/model_000300.pt", 12),
        "--resume-from-step ${checkpoint.number}",
    ),
    "nanogpt": Shape(
        "python train.py",
        "out",
        ("out",),
        Story(r"^iter (\d+): loss", "loss", "ckpt.pt", 4, prepare="data/shakespeare/prepare.py", quick=True),
        "--init_from=resume",
    ),
    "ncf_dllogger": Shape(
        "python ncf.py --checkpoint_dir ${checkpoints}",
        "outputs",
        ("checkpoints",),
        Story(r"^DLL .* Epoch: (\d+) ", "hr@10", "checkpoints/model.pth"),
        f"--load_checkpoint_path {NEWEST}",
    ),
    # It refuses a folder that exists, also when it resumes from a path.
    "new_folder": Shape(
        "python train.py --save_dir ${outputs}/$STOKER_ATTEMPT",
        "outputs",
        ("outputs",),
        Story(r"^epoch (\d+) loss", "loss", "3/epoch_39.pkl"),
        f"--resume {NEWEST}",
    ),
    "notebook_like": Shape(
        "python analysis.py", "outputs", ("perceptron.pkl",), Story("^accuracy", "accuracy", "perceptron.pkl", ANEW)
    ),
    "onmt_prefix": Shape(
        "python train.py",
        "outputs",
        ("model_step_*.pt",),
        Story(r"Step +(\d+)/", "ppl", "model_step_80.pt", 8),
        f"--train_from {NEWEST}",
    ),
    "optuna_sqlite": Shape(
        "python tune.py",
        "outputs",
        ("study.db", "best_params.pkl"),
        # The trial that was interrupted keeps its number in the study.
        Story(r"Trial (\d+) finished", "value", "best_params.pkl", each=2),
    ),
    "outside_data": Shape(
        "python train.py",
        "outputs",
        ("checkpoints",),
        Story(r"^Epoch (\d+)/40", "train_loss", "checkpoints/last.pt"),
        folder="project",
    ),
    # It refuses a folder that exists, unless it is told to resume there.
    "own_folder": Shape(
        "python train.py --run-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^epoch (\d+) loss", "loss", "last.ckpt", quick=True),
        "--resume",
        creates=True,
    ),
    "package": Shape(
        "python -m mypkg.train --checkpoint-dir ${checkpoints}",
        "outputs",
        ("checkpoints",),
        Story(r"^epoch=(\d+)", "train_loss", "checkpoints/last.pt"),
    ),
    # It saves only a model that is better than the last one.
    "pytorch_cifar": Shape(
        "python main.py",
        "outputs",
        ("checkpoint",),
        Story(r"^Epoch: (\d+)", "acc", "checkpoint/ckpt.pth", 40),
        "--resume",
    ),
    "recbole": Shape(
        "python run_recbole.py",
        "saved",
        ("saved",),
        Story(r"epoch (\d+) training", "train_loss", "BPR-latest.pth"),
        f"--load_model {NEWEST}",
    ),
    "reinforce": Shape(
        "python reinforce.py",
        "policies",
        ("policies",),
        Story(r"^Episode (\d+)\t", "reward", "policy.pth", 4, 2),
        "--restore",
    ),
    "segmenter_rich": Shape(
        "python -m segmenter.train", "outputs", ("lab/unet",), Story(r"epoch (\d+)", "mIoU", "lab/unet/last.pt")
    ),
    "sigterm": Shape("python train.py", "state", ("state",), Story(r"^step (\d+) \|", "loss", "run.npz", 5)),
    "sklearn_joblib": Shape(
        "python fit_classifier.py",
        "models",
        ("models",),
        Story(r"^epoch: (\d+) ", "accuracy", "classifier.joblib"),
    ),
    "spawned_workers": Shape(
        "python train.py",
        "results",
        ("results",),
        Story(r"^Generation (\d+):", "best_score", "population.json"),
    ),
    # The command is in its README; where it saves is in the file that this names, by references to other keys.
    "speechbrain": Shape(
        "python train.py hparams/train.yaml",
        "outputs",
        ("results",),
        Story(r"^brain - epoch: (\d+)", "val_loss", "results/crdnn/1234/save/*/model.ckpt"),
    ),
    "src_layout": Shape(
        "python src/train.py",
        "outputs",
        ("work_dirs",),
        Story(r"epoch (\d+)/40", "train_loss", "work_dirs/base/latest.pth"),
    ),
    "stylegan": Shape(
        "python train.py --outdir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^tick (\d+)", "Loss/G/loss/mean", "*/network-snapshot-000060.pkl"),
        f"--resume {NEWEST}",
    ),
    "swin": Shape(
        "python main.py --output ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"Train: \[(\d+)/60\]\[3", "grad_norm", "swin_tiny/default/ckpt_epoch_59.pth"),
        f"--resume {NEWEST}",
    ),
    # The flag's variable is the path to save to later on, without a suffix.
    "tacotron2": Shape(
        "python train.py --output_directory ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^Train loss (\d+) ", "train_loss", "checkpoint_*", 8),
        f"--checkpoint_path {NEWEST}",
    ),
    "template_json": Shape(
        "python train.py --config config.json",
        "outputs",
        ("saved",),
        Story(r"epoch +: (\d+)", "val_loss", "saved/models/Mnist_LeNet/*/checkpoint-epoch40.pth"),
        f"--resume {NEWEST}",
    ),
    "template_yaml": Shape(
        "python run.py",
        "outputs",
        ("saved",),
        Story(r"epoch +: (\d+)", "val_loss", "saved/Mnist_LeNet/checkpoint-epoch060.pkl"),
    ),
    "timm_like": Shape(
        "python train.py --output ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^Train: (\d+) ", "loss", "*/last.pth.tar"),
        f"--resume {NEWEST}",
    ),
    # A key of its configuration says whether it resumes, and `key=value` overrides it.
    "torchtune": Shape(
        "python full_finetune.py --config configs/full.yaml",
        "outputs",
        ("tuned/full_finetune",),
        Story(r"(\d+)\|\d+\|Loss", "loss", "tuned/full_finetune/recipe_state.pt"),
        "resume_from_checkpoint=True",
    ),
    "torchvision_reference": Shape(
        "python train.py --output-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^Epoch: \[(\d+)\]", "acc1", "checkpoint.pth"),
        f"--resume {NEWEST}",
    ),
    "two_steps": Shape(
        "bash train.sh", "outputs", ("state.json",), Story(r"^epoch (\d+) Loss", "val_accuracy", "state.json")
    ),
    "typer_module": Shape(
        "cd src && python -m forecaster.train --run-dir ${outputs}",
        "outputs",
        ("outputs",),
        Story(r"^\[(\d+)/060\] mae", "mae", "epoch060.pkl"),
        f"--restart {NEWEST}",
    ),
    "vae": Shape(
        "python main.py",
        "results",
        ("results",),
        Story(r"Epoch: (\d+) Average", "loss", "vae_epoch_4.pt", ANEW),
    ),
    "word_language_model": Shape(
        "python main.py --data ${data.data}",
        "outputs",
        ("model.pt",),
        Story(r"end of epoch +(\d+)", "val_loss", "model.pt", ANEW),
    ),
    "writes_to_cwd": Shape(
        "python classify.py", "outputs", ("epoch_*.npz",), Story(r"^Epoch (\d+)/45", "loss", "epoch_45.npz", quick=True)
    ),
    "xgboost_callback": Shape(
        "python train_xgb.py",
        "xgb_models",
        ("xgb_models", "model.json"),
        Story(r"^(\d+) rounds are done", "train-logloss", "model.json", 4),
    ),
    "yolo": Shape(
        "python train.py",
        "outputs",
        ("runs",),
        Story(r"^epoch (\d+)/39", "box_loss", "runs/train/exp/weights/last.pt"),
        f"--resume {NEWEST}",
    ),
}
