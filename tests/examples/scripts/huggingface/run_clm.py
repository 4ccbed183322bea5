"""After the shape of Hugging Face's run_*.py scripts: HfArgumentParser and the last checkpoint of `--output_dir`."""

import os
import sys
import time
from dataclasses import dataclass, field

import torch
from transformers import HfArgumentParser, PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    width: int = field(default=4)


class Config(PretrainedConfig):
    model_type = "tiny"


class Tiny(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, x=None, labels=None):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


class Pace(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        time.sleep(0.35)
        print(f"epoch {state.epoch:.0f} ends", flush=True)


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    training_args.num_train_epochs, training_args.save_strategy = 40, "epoch"
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = [{"x": one, "labels": one.sum()} for one in x]
    trainer = Trainer(model=Tiny(Config()), args=training_args, train_dataset=data, callbacks=[Pace()])
    trainer.train(resume_from_checkpoint=last_checkpoint)
    trainer.save_model()
    return 0


if __name__ == "__main__":
    sys.exit(main())
