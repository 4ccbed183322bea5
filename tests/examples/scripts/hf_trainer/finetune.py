"""The Trainer as most notebooks use it: a folder in the code, and the newest checkpoint if there is one."""

import os
import time

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

OUTPUT_DIR = "./results"


class Config(PretrainedConfig):
    model_type = "tiny"


class Classifier(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(8, 2)
        self.post_init()

    def forward(self, x=None, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Pace(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        time.sleep(0.35)


args = TrainingArguments(
    output_dir=OUTPUT_DIR,
    num_train_epochs=40,
    per_device_train_batch_size=16,
    logging_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
torch.manual_seed(0)
x = torch.randn(64, 8)
data = [{"x": one, "labels": (one.sum() > 0).long()} for one in x]
trainer = Trainer(model=Classifier(Config()), args=args, train_dataset=data, callbacks=[Pace()])
has_checkpoint = os.path.isdir(OUTPUT_DIR) and any(name.startswith("checkpoint-") for name in os.listdir(OUTPUT_DIR))
trainer.train(resume_from_checkpoint=has_checkpoint)
trainer.save_model("./fine-tuned-model")
