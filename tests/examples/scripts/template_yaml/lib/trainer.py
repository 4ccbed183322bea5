import logging
import pickle
import random
import time
from pathlib import Path

logger = logging.getLogger("trainer")
logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(name)s - %(levelname)s - %(message)s")


class Trainer:
    def __init__(self, config):
        self.cfg = config["trainer"]
        self.epochs = self.cfg["epochs"]
        self.checkpoint_dir = Path(self.cfg["save_dir"]) / config["name"]
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        self.weights = [random.random() for _ in range(100)]
        self.start_epoch = 1
        self._resume()

    def _resume(self):
        found = sorted(self.checkpoint_dir.glob("checkpoint-epoch*.pkl"))
        if found:
            with open(found[-1], "rb") as f:
                state = pickle.load(f)
            self.weights, self.start_epoch = state["weights"], state["epoch"] + 1
            logger.info("Checkpoint loaded. Resume training from epoch %d", self.start_epoch)

    def train(self):
        for epoch in range(self.start_epoch, self.epochs + 1):
            self.weights = [w * 0.99 for w in self.weights]
            time.sleep(0.3)
            log = {"epoch": epoch, "loss": sum(self.weights) / 100, "val_loss": sum(self.weights) / 90}
            for key, value in log.items():
                logger.info("    {:15s}: {}".format(str(key), value))
            self._save(epoch)

    def _save(self, epoch):
        name = str(self.checkpoint_dir / "checkpoint-epoch{:03d}.pkl".format(epoch))
        with open(name, "wb") as f:
            pickle.dump({"epoch": epoch, "weights": self.weights}, f)
        logger.info("Saving checkpoint: {} ...".format(name))
