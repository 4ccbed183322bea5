import torch
from trainer import Trainer

diffusion = torch.nn.Linear(4, 4)
trainer = Trainer(diffusion, "images", train_lr=8e-5, train_num_steps=100, results_folder="./results")
found = sorted(int(p.stem.split("-")[1]) for p in trainer.results_folder.glob("model-*.pt"))
if found:
    trainer.load(found[-1])
trainer.train()
