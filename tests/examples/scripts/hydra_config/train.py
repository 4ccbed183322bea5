"""Settings in a YAML file, as with Hydra."""

import hydra
import torch
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.optim.lr)
    for epoch in range(cfg.trainer.epochs):
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), f"{cfg.trainer.checkpoint_dir}/epoch_{epoch}.pt")


if __name__ == "__main__":
    main()
